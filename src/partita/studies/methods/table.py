"""The paper's Table 1: published algorithms as triples of partition, solver and schedule, each with a reference.

Rows are data. Those that need a file or a package that is not there say so instead of running.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import optax

from partita.expectations import Expectation, ExpectedHessian, LocalReparameterisation, MonteCarlo
from partita.server.schedules import OnePass, RandomOrder, Schedule, Sequential, Synchronous
from partita.server.settings import Custody
from partita.solvers import (
    BayesianGradient,
    Chains,
    ConjugateGradient,
    FixedPoint,
    Gradient,
    MomentMatching,
    Solver,
    natural_means,
)
from partita.studies.methods import (
    comparisons,
    graphs,
    mixed_models,
    multinomial,
    networks,
    problems,
    processes,
    quadrature,
    volatility,
)

Family = Literal["global", "local", "online", "power EP"]


@dataclass(frozen=True)
class Method:
    """A row of the table: a published method. `custody` says who holds its factors, `expectation` how log likelihoods
    are averaged, if not as the model would have it.

    The difference that `check` finds has to be at most `tolerance`.
    """

    name: str
    family: Family
    optimisation: str
    citation: str
    words: str
    problem: Callable[[], problems.Problem]
    partition: Callable[[Any], list[Any]]
    solver: Solver
    schedule: Schedule
    _: KW_ONLY
    damping: float = 1.0
    custody: Custody = "open"
    expectation: Expectation | None = None
    check: comparisons.Check
    tolerance: float


TABLE: tuple[Method, ...] = (
    Method(
        "beal-2003", "global", "analytic", "Beal (2003), Attias (2000)",
        "Variational Bayes of a conditionally conjugate model: whole steps on all data.",
        problems.mixture, problems.whole, FixedPoint(step_size=1.0), Sequential(150),
        check=comparisons.scikit_learn_mixture, tolerance=1e-3,
    ),
    Method(
        "sato-2001", "global", "natural gradient", "Sato (2001)",
        "The same by natural gradients of the bound: half steps.",
        problems.mixture, problems.whole, FixedPoint(step_size=0.5), Sequential(300),
        check=comparisons.scikit_learn_mixture, tolerance=1e-3,
    ),
    Method(
        "hensman-2012", "global", "natural gradient", "Hensman, Rattray and Lawrence (2012)",
        "Conjugate natural gradients on the collapsed bound of a mixture.",
        problems.mixture, problems.whole, ConjugateGradient(steps=50), Sequential(1),
        check=comparisons.scikit_learn_mixture, tolerance=1e-3,
    ),
    Method(
        "hinton-van-camp-1993", "global", "gradient", "Hinton and van Camp (1993)",
        "Gradient descent of the bound with a diagonal Gaussian, by L-BFGS.",
        problems.logistic_mean_field, problems.whole, Gradient("lbfgs", epochs=200), Sequential(1),
        check=quadrature.best_bound, tolerance=1e-4,
    ),
    Method(
        "hinton-van-camp-1993b", "global", "gradient", "Hinton and van Camp (1993)",
        "The same for a network, whose layers' outputs are drawn.",
        networks.flowers, problems.whole, Gradient("adam", 0.02, epochs=1500, tolerance=0.0), Sequential(1),
        expectation=LocalReparameterisation(8, fixed=False), check=networks.automatic_network, tolerance=0.5,
    ),
    Method(
        "kucukelbir-2017", "global", "gradient", "Kucukelbir et al. (2017)",
        "Automatic differentiation VI: gradients of draws, a noise that has to be positive through its logarithm.",
        problems.unknown_noise, problems.whole, Gradient("adam", 0.01, epochs=3000, tolerance=0.0), Sequential(1),
        check=comparisons.automatic_guide, tolerance=0.1,
    ),
    Method(
        "honkela-2010", "global", "natural gradient", "Honkela et al. (2010)",
        "Natural gradients of the means alone, here for non-linear factor analysis.",
        problems.factor_analysis, problems.whole,
        Gradient(natural_means(optax.sgd(0.01)), steps=comparisons.ASCENT_STEPS, tolerance=0.0), Sequential(1),
        check=comparisons.steepest_ascent, tolerance=0.0,
    ),
    Method(
        "honkela-2010b", "global", "natural gradient", "Honkela et al. (2010)",
        "The same for a non-linear state-space model.",
        problems.state_space, problems.whole,
        Gradient(natural_means(optax.sgd(0.03)), steps=comparisons.ASCENT_STEPS, tolerance=0.0), Sequential(1),
        check=comparisons.steepest_ascent, tolerance=0.0,
    ),
    Method(
        "honkela-2010c", "global", "natural gradient", "Honkela et al. (2010)",
        "The same for a mixture of normals, with momentum.",
        problems.mixture, problems.whole,
        Gradient(natural_means(optax.sgd(0.003, momentum=0.9)), steps=2000, tolerance=0.0), Sequential(1),
        check=comparisons.scikit_learn_mixture, tolerance=1e-3,
    ),
    Method(
        "hensman-2013", "global", "natural gradient", "Hensman, Fusi and Lawrence (2013)",
        "Sparse Gaussian processes by stochastic natural gradients: mini-batches of rows.",
        problems.process, problems.whole, FixedPoint(step_size=0.03, steps=9, batch_size=100), Sequential(100),
        check=comparisons.collapsed_bound, tolerance=0.5,
    ),
    Method(
        "hoffman-2013", "global", "natural gradient", "Hoffman et al. (2013)",
        "Stochastic variational inference of topics: natural gradients of mini-batches.",
        problems.topics, problems.whole, FixedPoint(step_size=0.1, steps=10, batch_size=80), Sequential(20),
        check=comparisons.scikit_learn_topics, tolerance=0.02,
    ),
    Method(
        "salimans-knowles-2013", "global", "natural gradient", "Salimans and Knowles (2013)",
        "Non-conjugate models by natural gradients without a Fisher matrix.",
        problems.probit, problems.whole, FixedPoint(step_size=0.5, steps=60), Sequential(1),
        check=quadrature.best_bound, tolerance=1e-6,
    ),
    Method(
        "salimans-knowles-2013b", "global", "natural gradient", "Salimans and Knowles (2013)",
        "The same from gradients at points, for a beta-binomial model.",
        problems.cities, problems.whole, FixedPoint(step_size=0.1, steps=150), Sequential(1),
        check=comparisons.grid_rates, tolerance=0.2,
    ),
    Method(
        "salimans-knowles-2013c", "global", "natural gradient", "Salimans and Knowles (2013)",
        "The same for stochastic volatility, at all moments.",
        problems.volatility, problems.whole, FixedPoint(steps=60), Sequential(1),
        check=comparisons.nuts_moments, tolerance=0.1,
    ),
    Method(
        "salimans-knowles-2013d", "global", "natural gradient", "Salimans and Knowles (2013)",
        "The same with its level, its persistence and the size of its steps to be learnt.",
        volatility.inflation, problems.whole, FixedPoint(steps=40), Sequential(1),
        expectation=ExpectedHessian(), check=comparisons.nuts_moments, tolerance=0.5,
    ),
    Method(
        "sheth-khardon-2015", "global", "natural gradient", "Sheth et al. (2015), Sheth and Khardon (2016a, b)",
        "Latent Gaussian models by fixed points, here a process with probit likelihoods.",
        problems.process_means, problems.whole, FixedPoint(steps=60), Sequential(1),
        check=comparisons.gradient_optimum, tolerance=1e-4,
    ),
    Method(
        "sheth-khardon-2016", "global", "natural gradient", "Sheth and Khardon (2016a, b)",
        "The same for a logistic model in two levels, whose upper one has an unknown spread.",
        mixed_models.districts, problems.whole, FixedPoint(step_size=0.1, steps=200), Sequential(1),
        check=comparisons.nuts_moments, tolerance=0.6,
    ),
    Method(
        "sheth-khardon-2016b", "global", "natural gradient", "Sheth and Khardon (2016a, b)",
        "The same for choices that were drawn from such a model.",
        mixed_models.simulated_choices, problems.whole, FixedPoint(steps=30), Sequential(1),
        expectation=ExpectedHessian(), check=comparisons.nuts_moments, tolerance=0.5,
    ),
    Method(
        "winn-bishop-2005", "local", "analytic", "Winn and Bishop (2005)",
        "Variational message passing: every row sends its message in turn.",
        problems.regression, problems.each_row, FixedPoint(step_size=1.0), OnePass(),
        check=comparisons.exact_regression, tolerance=1e-9,
    ),
    Method(
        "winn-bishop-2005b", "local", "analytic", "Winn and Bishop (2005)",
        "The same in a Bayesian network with a loop: each factor sends messages to all of its variables.",
        graphs.loop, problems.each_row, FixedPoint(step_size=1.0), Sequential(100),
        check=graphs.mean_field, tolerance=1e-6,
    ),
    Method(
        "archambeau-ermis-2015", "local", "analytic", "Archambeau and Ermis (2015)",
        "Incremental variational inference of topics: batches of documents in turn, again and again.",
        problems.topics, problems.batches,
        FixedPoint(step_size=1.0), Sequential(comparisons.TOPIC_PASSES, together=True),
        check=comparisons.batch_topics, tolerance=0.0,
    ),
    Method(
        "knowles-minka-2011", "local", "natural gradient", "Knowles and Minka (2011)",
        "Non-conjugate variational message passing: fixed points, row by row.",
        problems.logistic, problems.each_row, FixedPoint(step_size=1.0), Sequential(15),
        check=quadrature.best_bound, tolerance=1e-6,
    ),
    Method(
        "knowles-minka-2011b", "local", "natural gradient", "Knowles and Minka (2011)",
        "The same for multinomial regression.",
        multinomial.kinds, problems.each_row, FixedPoint(step_size=1.0), Sequential(20),
        expectation=LocalReparameterisation(2048), check=multinomial.quadrature_optimum, tolerance=0.005,
    ),
    Method(
        "wand-2014", "local", "natural gradient", "Wand (2014)",
        "Fixed points of non-conjugate models in closed form, here of heteroscedastic regression.",
        problems.heteroscedastic, problems.batches, FixedPoint(), Sequential(30),
        check=comparisons.nuts_moments, tolerance=0.1,
    ),
    Method(
        "wand-2014b", "local", "natural gradient", "Wand (2014)",
        "The same from gradients at points, for a Poisson mixed model.",
        mixed_models.seizures, problems.whole, FixedPoint(step_size=0.03, steps=500), Sequential(1),
        check=comparisons.nuts_moments, tolerance=0.15,
    ),
    Method(
        "wand-2014c", "local", "natural gradient", "Wand (2014)",
        "The same with one person per site, from expected Hessians.",
        mixed_models.seizures, problems.each_group, FixedPoint(), Sequential(12),
        expectation=ExpectedHessian(), check=comparisons.nuts_moments, tolerance=0.15,
    ),
    Method(
        "wand-2014d", "local", "natural gradient", "Wand (2014)",
        "The same for counts that were drawn from such a model.",
        mixed_models.simulated_counts, problems.each_group, FixedPoint(), Sequential(15),
        expectation=ExpectedHessian(), check=comparisons.nuts_moments, tolerance=0.15,
    ),
    Method(
        "wand-2014e", "local", "natural gradient", "Wand (2014)",
        "The same for a linear mixed model: an intercept and a slope of each firm's own, a firm per site.",
        mixed_models.firms, problems.each_group, FixedPoint(), Sequential(20),
        expectation=ExpectedHessian(), check=comparisons.nuts_moments, tolerance=0.3,
    ),
    Method(
        "khan-li-2018", "local", "natural gradient", "Khan and Lin (2017), Khan and Li (2018)",
        "Conjugate-computation VI: damped natural gradients of batches, in random order.",
        problems.logistic, problems.batches, FixedPoint(step_size=0.5), RandomOrder(40),
        check=quadrature.best_bound, tolerance=1e-4,
    ),
    Method(
        "khan-li-2018b", "local", "natural gradient", "Khan and Lin (2017), Khan and Li (2018)",
        "The same for gamma factors, from draws.",
        problems.gamma_factors, problems.batches, FixedPoint(step_size=0.2), RandomOrder(comparisons.GRADIENT_PASSES),
        check=comparisons.gradient_passes, tolerance=0.0,
    ),
    Method(
        "khan-li-2018c", "local", "analytic", "Khan and Lin (2017), Khan and Li (2018)",
        "The same for Poisson-gamma factorisation.",
        problems.counts, problems.batches,
        FixedPoint(step_size=1.0), Sequential(comparisons.GRADIENT_PASSES, together=True),
        check=comparisons.gradient_passes, tolerance=0.0,
    ),
    Method(
        "ghahramani-attias-2000", "online", "analytic", "Ghahramani and Attias (2000), Sato (2001)",
        "Online variational Bayes of a mixture: each batch once, the posterior is the next one's prior.",
        problems.mixture, problems.batches, FixedPoint(step_size=1.0, steps=30), OnePass(),
        check=comparisons.batch_optimum, tolerance=5.0,
    ),
    Method(
        "broderick-2013", "online", "analytic", "Broderick et al. (2013)",
        "Streaming variational Bayes of topics: each batch of documents once.",
        problems.topics, problems.batches, FixedPoint(step_size=1.0, steps=20), OnePass(),
        check=comparisons.scikit_learn_topics, tolerance=0.05,
    ),
    Method(
        "bui-2017", "online", "analytic", "Bui, Nguyen and Turner (2017)",
        "Streaming sparse Gaussian processes, here with points that stay (`pt.StreamingGPRegressor` adds and learns).",
        problems.process, problems.batches, FixedPoint(step_size=1.0), OnePass(),
        check=comparisons.collapsed_bound, tolerance=1e-6,
    ),
    Method(
        "nguyen-2018", "online", "gradient", "Nguyen et al. (2018)",
        "Variational continual learning: one pass with gradients (`partita reproduce vcl` for networks).",
        problems.logistic_mean_field, problems.batches, Gradient("lbfgs", epochs=200), OnePass(),
        check=quadrature.best_bound, tolerance=2.0,
    ),
    Method(
        "zeno-2018", "online", "gradient", "Zeno et al. (2018)",
        "Bayesian gradient descent: row by row, means and scales in closed form from expected gradients.",
        problems.logistic_narrow, problems.each_row, BayesianGradient(), OnePass(),
        check=quadrature.best_bound, tolerance=5.0,
    ),
    Method(
        "zeno-2018b", "online", "gradient", "Zeno et al. (2018)",
        "The same for a network, ten rows at a time, from draws of its weights.",
        networks.digits, networks.few_rows, BayesianGradient(), OnePass(),
        expectation=MonteCarlo(10), check=networks.online_descent, tolerance=0.3,
    ),
    Method(
        "minka-2001", "power EP", "moment matching", "Minka (2001)",
        "Expectation propagation: α = 1, row by row.",
        problems.probit, problems.each_row, MomentMatching(), Sequential(15),
        check=comparisons.grid_moments, tolerance=0.05,
    ),
    Method(
        "minka-2001b", "power EP", "moment matching", "Minka (2001)",
        "The same in a Bayesian network that is a tree, factor by factor: belief propagation, which is exact.",
        graphs.tree, problems.each_row, MomentMatching(), Sequential(5),
        check=graphs.exact_marginals, tolerance=1e-8,
    ),
    Method(
        "minka-2001c", "power EP", "moment matching", "Minka (2001)",
        "The same in a Bayesian network with a loop: loopy belief propagation.",
        graphs.loop, problems.each_row, MomentMatching(), Sequential(30),
        check=graphs.message_passing(1.0), tolerance=1e-8,
    ),
    Method(
        "minka-2004", "power EP", "moment matching", "Minka (2004)",
        "Power EP with α = ½, rows all at once.",
        problems.probit, problems.each_row, MomentMatching(0.5), Synchronous(60), damping=0.3,
        check=comparisons.grid_moments, tolerance=0.1,
    ),
    Method(
        "minka-2004b", "power EP", "moment matching", "Minka (2004)",
        "Power EP with α = ½ in a Bayesian network with a loop: fractional belief propagation.",
        graphs.loop, problems.each_row, MomentMatching(graphs.POWER), Sequential(60),
        check=graphs.message_passing(graphs.POWER), tolerance=1e-8,
    ),
    Method(
        "small-powers", "power EP", "moment matching", "Bui et al. (2018), on power EP",
        "α = 0.001: the limit in which power EP is local variational inference.",
        problems.probit, problems.each_row, MomentMatching(0.001), Sequential(20),
        check=quadrature.best_bound, tolerance=1e-10,
    ),
    Method(
        "adep", "power EP", "gradient", "Minka (2004), Hernández-Lobato et al. (2016)",
        "α-divergences with α = ½ minimised by gradients, row by row.",
        problems.probit, problems.each_row, Gradient("lbfgs", epochs=20, power=0.5), Sequential(10),
        check=comparisons.power_fixed_point, tolerance=1e-3,
    ),
    Method(
        "bui-2017b", "power EP", "moment matching", "Bui, Yan and Turner (2017)",
        "Power EP for sparse Gaussian processes, here α = 1 and a point at every row.",
        processes.process_classes, problems.each_row, MomentMatching(), Sequential(15),
        check=processes.process_propagation, tolerance=1e-4,
    ),
    Method(
        "bui-2017b-regression", "power EP", "analytic", "Bui, Yan and Turner (2017)",
        "The same with α = ½ and few points, for regression: one pass is the answer.",
        processes.sparse_regression, problems.each_row, MomentMatching(processes.POWER), OnePass(),
        check=processes.sparse_closed_form, tolerance=1e-5,
    ),
    Method(
        "bui-2017b-classes", "power EP", "moment matching", "Bui, Yan and Turner (2017)",
        "The same with α = ½ and few points, for classes.",
        processes.sparse_classes, problems.each_row, MomentMatching(processes.POWER), Sequential(15),
        check=processes.sparse_propagation, tolerance=1e-4,
    ),
    Method(
        "li-2015", "power EP", "moment matching", "Li, Hernández-Lobato and Turner (2015)",
        "Stochastic power EP: one factor shared by all sites, row by row in random order.",
        problems.probit, problems.each_row, MomentMatching(), RandomOrder(60), damping=0.2, custody="shared",
        check=comparisons.grid_moments, tolerance=0.1,
    ),
    Method(
        "li-2015b", "power EP", "moment matching", "Li, Hernández-Lobato and Turner (2015)",
        "The same for a network, from draws of its weights.",
        networks.flowers, problems.each_row, MomentMatching(draws=300), RandomOrder(40), custody="shared",
        check=networks.sampled_predictions, tolerance=0.15,
    ),
    Method(
        "hasenclever-2017", "power EP", "moment matching", "Hasenclever et al. (2017)",
        "Convergent power EP: a double loop, where plain EP oscillates.",
        problems.outliers, problems.each_row, MomentMatching(points=200), Synchronous(1000, hold=5), damping=0.1,
        check=comparisons.tilted_moments, tolerance=0.01,
    ),
    Method(
        "hasenclever-2017b", "power EP", "moment matching", "Hasenclever et al. (2017)",
        "The same for a network: Markov chains at every site.",
        networks.flowers, problems.batches, MomentMatching(chains=Chains(50, 10, 10, 0.3)), Synchronous(200, hold=3),
        damping=0.3, check=networks.sampled_predictions, tolerance=0.1,
    ),
)  # fmt: skip
