"""NumPyro programs as models, against conjugate algebra, quadrature, and NumPyro's own densities."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpy.testing import assert_allclose
from numpyro.infer.util import log_density
from scipy import stats

import partita as pt
from partita.errors import InputError, ShardError
from partita.foundation.runtime import precision

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 2))
Y = X @ np.array([1.0, -0.5]) + 0.6 * RNG.normal(size=24)
SHARDS = [(X[:6], Y[:6]), (X[6:], Y[6:])]
ROUNDS = pt.schedules.Synchronous(rounds=40, settled=1e-10)
GROUP = np.repeat(np.arange(6), 4)


def known_noise(X, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, 0.6), obs=y)


def one_slope(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


def intercepts(group, y):
    level = numpyro.sample("level", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("groups", 6):
        own = numpyro.sample("own", dist.Normal(level, spread))
    numpyro.sample("y", dist.Normal(own[group], 0.6), obs=y)


@pytest.fixture(scope="module")
def sloped():
    x, y = X[:, 0], Y
    shards = [(x[:8], y[:8]), (x[8:], y[8:])]
    return pt.fit(pt.from_numpyro(one_slope, ("x", "y")), shards, schedule=ROUNDS), shards


@pytest.mark.parametrize("posterior", ["full", "mean-field"])
def test_conjugate_program_equals_the_model(posterior):
    ours = pt.fit(pt.from_numpyro(known_noise, posterior=posterior), SHARDS, schedule=ROUNDS)
    exact = pt.models.LinearRegression(2, noise=0.6, prior_scale=2.0, intercept=False, posterior=posterior)
    other = pt.fit(exact, SHARDS, schedule=ROUNDS)
    assert len(ours.factors) == 2
    assert_allclose(ours.posterior.location, other.posterior.location, atol=1e-6)
    assert_allclose(ours.posterior.scale, other.posterior.scale, rtol=1e-6)
    assert_allclose(ours.log_evidence, other.log_evidence, atol=1e-6)


def test_a_prior_that_is_not_gaussian_has_a_site_of_its_own(sloped):
    """The posterior over (slope, log noise), against sums over a fine grid."""
    result, shards = sloped
    assert len(result.factors) == len(shards) + 1
    slopes, logs = np.meshgrid(np.linspace(-1, 3, 400), np.linspace(-2, 1.5, 400), indexing="ij")
    noise = np.exp(logs)
    density = stats.norm.logpdf(slopes) + stats.halfnorm.logpdf(noise) + logs
    for x, y in zip(X[:, 0], Y, strict=True):
        density += stats.norm.logpdf(y, slopes * x, noise)
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    names = [latent.name for latent in result.model.layout.latents]
    for name, values in (("slope", slopes), ("noise", logs)):
        mean = np.sum(weights * values)
        deviation = np.sqrt(np.sum(weights * (values - mean) ** 2))
        place = names.index(name)
        assert abs(result.posterior.location[place] - mean) < 0.03 * deviation
        assert 0.93 < result.posterior.scale[place] / deviation < 1.02
    cell = (slopes[1, 0] - slopes[0, 0]) * (logs[0, 1] - logs[0, 0])
    assert -0.1 < result.log_evidence - (np.log(np.sum(np.exp(density - density.max())) * cell) + density.max()) < 1e-3


def test_samples_are_constrained_and_named(sloped):
    drawn = sloped[0].sample(3, 500)
    assert set(drawn) == {"slope", "noise"}
    assert drawn["noise"].shape == (500,)
    assert np.all(drawn["noise"] > 0)


def test_the_prior_is_numpyros():
    """Simplexes, bounds that depend on other variables, and a covariance's Cholesky factor."""

    def program(y):
        top = numpyro.sample("top", dist.LogNormal(0, 1))
        numpyro.sample("below", dist.Uniform(0, top))
        numpyro.sample("shares", dist.Dirichlet(jnp.array([2.0, 1.0, 3.0])))
        numpyro.sample("root", dist.LKJCholesky(3, 1.5))
        numpyro.sample("y", dist.Normal(top, 1), obs=y)

    y = np.zeros(1)
    model = pt.from_numpyro(program, ("y",), like=(y,))
    theta = 0.3 * np.random.default_rng(1).normal(size=model.layout.size)
    with precision(np.float64):
        values = {name: value[0] for name, value in model.named(theta[None]).items()}
        density, _ = log_density(program, (), {"y": jnp.zeros(1)}, values)
        statements = model.run(jnp.asarray(theta), None, model.layout.empty_row())
        jacobian = sum(jnp.sum(statement.log_jacobian) for statement in statements.values())
        expected = density - stats.norm.logpdf(0.0, values["top"]) + jacobian
        assert_allclose(model.log_prior(jnp.asarray(theta)), expected, rtol=1e-6)


def test_local_variables_are_integrated_out():
    """Rows of a group are jointly normal: mean level, covariance spread² + noise²."""
    model = pt.from_numpyro(intercepts, ("group", "y"), local={"groups": "group"}, like=(GROUP, Y))
    shard = model.shard(0, (GROUP, Y))
    level, log_spread = 0.3, -0.4
    with precision(np.float64):
        found = jax.jit(lambda t: model.log_prob(t, shard.data, {}))(jnp.array([level, log_spread]))
    covariance = np.exp(2 * log_spread) + 0.6**2 * np.eye(4)
    exact = [stats.multivariate_normal.logpdf(Y[4 * g : 4 * g + 4], np.full(4, level), covariance) for g in range(6)]
    assert_allclose(found, exact, rtol=1e-9)


def test_a_program_may_be_written_for_one_group():
    """Groups then have any numbers, and none is looked at by the program of another."""

    def of_one(group, y):
        level = numpyro.sample("level", dist.Normal(0, 2))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        with numpyro.plate("groups", 1):
            own = numpyro.sample("own", dist.Normal(level, spread))
        numpyro.sample("y", dist.Normal(own, 0.6), obs=y)

    theta, order = np.array([0.3, -0.4]), np.random.default_rng(3).permutation(20)
    found = []
    for program, codes in ((intercepts, GROUP), (of_one, 1000 + 7 * GROUP)):
        raw = (codes[order], Y[order])
        model = pt.from_numpyro(program, ("group", "y"), local={"groups": "group"}, like=raw)
        shard = model.shard(0, raw)
        with precision(np.float64):
            found.append(jax.jit(lambda t, m=model, s=shard: m.log_prob(t, s.data, {}))(theta))
    assert_allclose(*found, rtol=1e-9)
    model = pt.from_numpyro(of_one, ("group", "y"), local={"groups": "group"})
    with pytest.raises(ShardError, match=r"group 1 is at another site too: keep it whole \(and site 0\)"):
        pt.fit(model, [(GROUP[:6], Y[:6]), (GROUP[6:], Y[6:])])


def test_what_is_observed_of_groups_is_refused():
    def program(group, y):
        with numpyro.plate("groups", 6):
            own = numpyro.sample("own", dist.Normal(numpyro.sample("level", dist.Normal()), 1))
            numpyro.sample("seen", dist.Normal(own, 1), obs=np.ones(6))
        numpyro.sample("y", dist.Normal(own[group], 0.6), obs=y)

    with pytest.raises(InputError, match="seen is observed for groups"):
        pt.from_numpyro(program, ("group", "y"), local={"groups": "group"}, like=(GROUP, Y))


def test_kinks_are_not_left_to_hessians():
    """A median: the posterior of a Laplace distribution's location, by a sum over a fine grid."""
    y = 1 + np.random.default_rng(1).laplace(size=60)

    def program(y):
        numpyro.sample("y", dist.Laplace(numpyro.sample("m", dist.Normal(0, 3)), 1.0), obs=y)

    result = pt.fit(pt.from_numpyro(program, ("y",)), [(y[:30],), (y[30:],)], schedule=ROUNDS)
    m = np.linspace(-1, 3, 4001)
    weights = np.exp(-np.abs(y[:, None] - m).sum(axis=0) - m**2 / 18 + 70)
    mean = np.average(m, weights=weights)
    deviation = np.sqrt(np.average((m - mean) ** 2, weights=weights))
    assert abs(result.posterior.location[0] - mean) < 0.1 * deviation
    assert result.posterior.scale[0] == pytest.approx(deviation, rel=0.03)


@pytest.fixture(scope="module")
def grouped():
    model = pt.from_numpyro(intercepts, ("group", "y"), local={"groups": "group"})
    shards = [{"group": GROUP[:8], "y": Y[:8]}, {"group": GROUP[8:], "y": Y[8:]}]
    return pt.fit(model, shards, schedule=ROUNDS), shards


def test_where_groups_are_does_not_matter(grouped):
    result, _ = grouped
    model = pt.from_numpyro(intercepts, ("group", "y"), local={"groups": "group"})
    pooled = pt.fit(model, [(GROUP, Y)], schedule=ROUNDS)
    # Up to what 64 points leave of an integral over θ.
    assert np.all(np.abs(result.posterior.location - pooled.posterior.location) < 0.02 * pooled.posterior.scale)
    assert_allclose(result.posterior.scale, pooled.posterior.scale, rtol=0.01)
    assert_allclose(result.log_evidence, pooled.log_evidence, atol=1e-3)


def test_a_site_can_look_at_its_own_variables(grouped):
    """Given θ they are normal here: draws over θ have the law of total variance."""
    result, shards = grouped
    drawn = result.model.sample_local(result.posterior, 0, 4000, shards[0])
    assert drawn["own"].shape == (4000, 2)
    theta = np.asarray(result.posterior.sample(jax.random.key(5), (4000,)))
    y = Y[:8].reshape(2, 4)
    precision_ = np.exp(-2 * theta[:, 1]) + 4 / 0.36
    means = (theta[:, :1] * np.exp(-2 * theta[:, 1:]) + y.sum(axis=1) / 0.36) / precision_[:, None]
    deviation = np.sqrt(means.var(axis=0) + np.mean(1 / precision_))
    assert_allclose(drawn["own"].mean(axis=0), means.mean(axis=0), atol=0.08 * deviation.max())
    assert_allclose(drawn["own"].std(axis=0), deviation, rtol=0.05)


def test_rows_with_variables_of_their_own():
    """A plate over rows is local without being named: the same as a wider noise."""

    def program(y):
        level = numpyro.sample("level", dist.Normal(0, 1))
        with numpyro.plate("rows", len(y)):
            own = numpyro.sample("own", dist.Normal(level, 0.8))
            numpyro.sample("y", dist.Normal(own, 0.6), obs=y)

    result = pt.fit(pt.from_numpyro(program, ("y",)), [(Y[:10],), (Y[10:],)], schedule=ROUNDS)
    precision_ = 1 + len(Y)
    assert_allclose(result.posterior.scale, [precision_**-0.5], rtol=1e-6)
    assert_allclose(result.posterior.location, [Y.sum() / precision_], atol=1e-6)


def test_a_site_says_nothing_about_what_it_does_not_see():
    def program(group, y):
        with numpyro.plate("groups", 6):
            level = numpyro.sample("level", dist.StudentT(3, 0, 1))
        numpyro.sample("y", dist.Normal(level[group], 0.6), obs=y)

    shards = [(GROUP[:8], Y[:8]), (GROUP[8:], Y[8:])]
    result = pt.fit(pt.from_numpyro(program, ("group", "y")), shards, schedule=pt.schedules.Synchronous(rounds=5))
    unseen = np.asarray(result.factors[0].precision)[2:]
    assert np.all(unseen == 0)


def test_weights_are_copies_of_rows():
    twice = pt.fit(pt.from_numpyro(known_noise), [(np.repeat(X, 2, 0), np.repeat(Y, 2))], schedule=ROUNDS)
    weighted = pt.models.Weighted((X, Y), np.full(24, 2.0))
    assert_allclose(
        pt.fit(pt.from_numpyro(known_noise), [weighted], schedule=ROUNDS).posterior.location,
        twice.posterior.location,
        rtol=1e-8,
    )


def test_a_stream_and_a_saved_result(sloped, tmp_path):
    result, shards = sloped
    model = pt.from_numpyro(one_slope, ("x", "y"))
    state = model
    for shard in shards:
        state = pt.partial_fit(state, shard, schedule=ROUNDS)
    assert abs(state.posterior.location - result.posterior.location).max() < 0.2 * result.posterior.scale.max()
    result.save(tmp_path / "model.safetensors")
    again = pt.load(tmp_path / "model.safetensors", model=pt.from_numpyro(one_slope, ("x", "y"), like=shards[0]))
    assert_allclose(again.sample(0, 10)["noise"], result.sample(0, 10)["noise"])


def test_a_run_is_kept_and_resumed(tmp_path):
    model = pt.from_numpyro(known_noise)
    short = pt.schedules.Synchronous(rounds=2)
    pt.fit(model, SHARDS, schedule=short, run_dir=tmp_path)
    longer = pt.fit(model, SHARDS, schedule=pt.schedules.Synchronous(rounds=4), run_dir=tmp_path, resume=True)
    whole = pt.fit(model, SHARDS, schedule=pt.schedules.Synchronous(rounds=4))
    assert longer.fingerprint == whole.fingerprint


def discrete(y):
    which = numpyro.sample("which", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(which, 1), obs=y)


def with_param(y):
    numpyro.sample("y", dist.Normal(numpyro.param("m", 0.0), 1), obs=y)


def with_batches(y):
    m = numpyro.sample("m", dist.Normal())
    with numpyro.plate("rows", len(y), subsample_size=1):
        numpyro.sample("y", dist.Normal(m, 1), obs=y[:1])


def scaled(y):
    m = numpyro.sample("m", dist.Normal())
    with numpyro.handlers.scale(scale=2.0):
        numpyro.sample("y", dist.Normal(m, 1), obs=y)


def fixed_rows(y):
    m = numpyro.sample("m", dist.Normal())
    numpyro.sample("y", dist.Normal(m, 1), obs=y + np.zeros(24))


def no_plate(y):
    m = numpyro.sample("m", dist.Normal())
    own = numpyro.sample("own", dist.Normal(m, 1).expand([len(y)]))
    numpyro.sample("y", dist.Normal(own, 1), obs=y)


def sees_nothing(y):
    numpyro.sample("m", dist.Normal())


def too_many(y):
    m = numpyro.sample("m", dist.Normal())
    with numpyro.plate("rows", len(y)):
        own = numpyro.sample("own", dist.Normal(m, 1).expand([4]).to_event(1))
        numpyro.sample("y", dist.Normal(own.sum(-1), 1), obs=y)


def branches(y):
    m = numpyro.sample("m", dist.Normal())
    numpyro.sample("y", dist.Normal(m if m > 0 else 2 * m, 1), obs=y)


def is_broken(y):
    m = numpyro.sample("m", dist.Normal())
    numpyro.sample("y", dist.Normal(m, {}["scale"]), obs=y)


def looks_at_others(y):
    m = numpyro.sample("m", dist.Normal())
    numpyro.sample("y", dist.Normal(m * (y - y.mean()), 1), obs=y)


def lagged(y):
    m = numpyro.sample("m", dist.Normal())
    numpyro.sample("y", dist.Normal(m * y[:-1], 1), obs=y[1:])


def summed(y):
    m = numpyro.sample("m", dist.Normal())
    numpyro.sample("y", dist.Normal(m, 1), obs=y)
    numpyro.factor("more", -jnp.sum((y - m) ** 2))


def improper(y):
    m = numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(m, 1), obs=y)


def looks_at_data(y):
    m = numpyro.sample("m", dist.Normal(0, 1 + y.max()))
    numpyro.sample("y", dist.Normal(m, 1), obs=y)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (looks_at_data, "prior of m depends on data"),
        (looks_at_others, "a row's y depends on other rows"),
        (lagged, "1 observations for 2 rows"),
        (summed, "more looks at rows, but has one log-probability"),
        (improper, "priors have to be proper"),
        (branches, "cannot be compiled: .*jnp.where"),
        (is_broken, "does not run on 2 rows of data: .*scale"),
        (discrete, "model: which is discrete"),
        (with_param, "prior"),
        (with_batches, "subsample"),
        (scaled, "Weighted"),
        (fixed_rows, "2 rows"),
        (no_plate, "plate over rows"),
        (sees_nothing, "observes no row"),
        (too_many, "4 numbers"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(program, words):
    with pytest.raises(InputError, match=words):
        pt.fit(pt.from_numpyro(program, ("y",)), [(Y,)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": ("X", "z")}, "no argument 'z'"),
        ({"posterior": "diagonal"}, "mean-field"),
        ({"local": {"groups": "y"}, "data": ("X",)}, "among `data`"),
    ],
)
def test_arguments_are_checked(arguments, words):
    with pytest.raises(InputError, match=words):
        pt.from_numpyro(known_noise, **arguments)


def test_shards_are_checked():
    model = pt.from_numpyro(known_noise)
    with pytest.raises(ShardError, match="rows of shape"):
        pt.fit(model, [SHARDS[0], (X[:, :1], Y)])
    with pytest.raises(ShardError, match="expected X, y"):
        pt.fit(model, [{"X": X, "z": Y}])
    grouped = pt.from_numpyro(intercepts, ("group", "y"), local={"groups": "group"})
    with pytest.raises(ShardError, match=r"group 1 is at another site too: keep it whole \(and site 0\)"):
        pt.fit(grouped, [(GROUP[:6], Y[:6]), (GROUP[6:], Y[6:])])
    with pytest.raises(ShardError, match="groups are 0 to 5, got 6 to 8"):
        pt.fit(grouped, [(GROUP[:12], Y[:12]), (GROUP[12:] + 3, Y[12:])])
    with pytest.raises(ShardError, match="other numbers than"):
        pt.fit(model, [(X[:6], np.ones(6, int)), SHARDS[1]])
    with pytest.raises(InputError, match="no plate 'districts'"):
        pt.fit(pt.from_numpyro(intercepts, ("group", "y"), local={"districts": "group"}), [(GROUP, Y)])
    with pytest.raises(InputError, match="like=shard"):
        model.shard(0, SHARDS[0])
