"""Rules: what passes a chain, in which order, and what is told of it."""

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

import partita as pt
from partita.errors import InputError, QuarantineWarning, UpdateRefused
from partita.families import MeanField
from partita.fitting import prepare
from partita.server.journals import read_notices, read_strikes
from partita.server.ledger import Ledger
from partita.server.rules import Fixed, Limits, Proposal, Remark, RuleState, Setup
from partita.server.rules.admission import Finite
from partita.server.rules.base import FreeEnergy
from partita.server.rules.chain import Chain
from partita.server.rules.cone import Cone
from partita.server.rules.limits import Age, TrustRegion
from partita.server.rules.own import OwnState
from partita.server.rules.strikes import Strikes
from partita.server.schedules import Sequential, Synchronous
from partita.wire.messages import Notice
from partita.wire.naming import SiteNames
from partita.wire.tasks import Update

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
Y = (X[:, 0] + 0.5 * GENERATOR.normal(size=60) > 0).astype(float)
SHARDS = [(X[i::4], Y[i::4]) for i in range(4)]
MODEL = pt.models.LogisticRegression(features=2)
PRIOR = MeanField(np.zeros(2), np.ones(2))


def fit(**settings):
    return pt.fit(MODEL, SHARDS, **{"schedule": Synchronous(rounds=8), **settings})


def make_chain(rules, sites=2):
    return Chain.of(rules, Setup(sites), Strikes(3, SiteNames()))


def propose(sites, changes, prior=PRIOR):
    stack = MeanField.stack(changes)
    return Proposal(sites, stack, stack.flat(), prior, prior)


@dataclass(frozen=True)
class Halve:
    """Takes half of what some sites propose, and says so."""

    sites: tuple[int, ...]
    strike: bool = False

    def init(self, setup):
        return HalveState(self)


@dataclass
class HalveState(RuleState):
    rule: Halve
    taken: tuple[float, ...] = ()

    def apply(self, proposal):
        self.latest = proposal.sites
        return proposal.cut(np.array([0.5 if site in self.rule.sites else 1.0 for site in proposal.sites]))

    def after_fold(self, taken):
        self.taken = tuple(taken)
        return [Remark(site, "was halved", self.rule.strike) for site in self.latest if site in self.rule.sites]


class TestChain:
    def test_each_rule_hears_which_share_of_what_it_let_through_was_taken(self):
        chain = make_chain([Halve((0,)), Halve((0, 1))])
        left = chain.apply(propose([0, 1], [PRIOR, PRIOR]))
        np.testing.assert_array_equal(left.changes.precision, [[0.25, 0.25], [0.5, 0.5]])
        after = chain.after_fold(0.8)
        np.testing.assert_allclose(after.shares, [0.2, 0.4])
        assert [state.taken for state in chain.states] == [(0.4, 0.4), (0.8, 0.8)]
        assert after.problems == ["site 0: was halved", "site 0: was halved", "site 1: was halved"]
        assert after.notices == []

    def test_rules_without_limits_to_hold_are_not_in_the_chain(self):
        def names(**settings):
            run, _ = prepare(MODEL, SHARDS, options={"limits": Limits(**settings)})
            return [type(state).__name__ for state in run.rules.states]

        assert names() == ["Finite", "AutoDamper", "ConeState"]
        assert names(staleness=3, total=5.0) == ["Age", "Finite", "AutoDamper", "Trust", "ConeState"]

    def test_the_last_word_is_everybodys(self):
        class Never(RuleState):
            def init(self, setup):
                return self

            def allows(self, old, new):
                return False

        chain = make_chain([Fixed(0.5), Never()])
        assert not chain.allows(PRIOR, PRIOR)
        assert make_chain([Fixed(0.5)]).allows(PRIOR, PRIOR)

    def test_an_old_update_is_refused(self):
        chain = make_chain([Age(3)])
        chain.admit(Update(0, 4, PRIOR, 0.0), version=7)
        with pytest.raises(UpdateRefused, match="4 updates were folded since it was asked, at most 3 may be"):
            chain.admit(Update(0, 3, PRIOR, 0.0), version=7)

    @pytest.mark.parametrize("name", ["expected_log_prob", "expected_log_factor", "expected_log_change", "finished_at"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
    def test_what_is_no_number_is_refused(self, name, value):
        with pytest.raises(UpdateRefused, match=f"{name}: expected a finite number"):
            make_chain([Finite()]).admit(replace(Update(0, 0, PRIOR, 0.0), **{name: value}), 0)

    def test_gradients_that_are_missing_or_not_asked_for_are_refused(self):
        chain = make_chain([Finite(("noise",), ("noise", "scale"))])
        chain.admit(Update(0, 0, PRIOR, 0.0, hyper_gradient={"noise": 1.0, "scale": 0.0}), 0)
        with pytest.raises(UpdateRefused, match="the gradient of noise is missing"):
            chain.admit(Update(0, 0, PRIOR, 0.0, hyper_gradient={"scale": 1.0}), 0)
        with pytest.raises(UpdateRefused, match="not asked for"):
            chain.admit(Update(0, 0, PRIOR, 0.0, hyper_gradient={"noise": 1.0, "other": 0.0}), 0)

    def test_limits_and_cone_see_what_damping_left(self):
        """Half of a change that goes too far is within the limit, and is taken whole."""
        ledger, limits = Ledger(PRIOR, 1), Limits(change=0.1)
        rules = [Fixed(0.1), TrustRegion(limits), Cone(ledger)]
        proposal = propose([0], [MeanField(np.full(2, 3.0), np.zeros(2))])
        left = make_chain(rules, 1).apply(proposal)
        assert left.wanted == 0.1
        np.testing.assert_allclose(left.changes.precision_times_location, 0.3)
        undamped = make_chain(rules[1:], 1).apply(proposal)
        np.testing.assert_allclose(undamped.changes.precision_times_location, 3 / 16)


@pytest.mark.filterwarnings("ignore:the last round had a problem", "ignore::partita.errors.QuarantineWarning")
class TestOwnRules:
    def test_a_rule_holds_a_site_back_and_is_heard(self):
        result = fit(rules=[Halve((2,))], damping=0.5)
        assert all(row["problem"] == "site 2: was halved" for row in result.history)
        assert all(row["limited_by"] == 2 for row in result.history)

    def test_the_fixed_point_is_the_same(self):
        schedule = Synchronous(rounds=60)
        halved, plain = fit(rules=[Halve((2,))], schedule=schedule), fit(schedule=schedule)
        np.testing.assert_allclose(halved.posterior.location, plain.posterior.location, atol=1e-6)

    def test_a_rule_that_strikes_leads_to_quarantine_and_all_of_it_is_in_the_journal(self, tmp_path):
        rule = Halve((1,), strike=True)
        with pytest.warns(
            QuarantineWarning, match="site b was quarantined, and the run went on without it: was halved"
        ):
            found = fit(rules=[rule], run_dir=tmp_path, names=["a", "b", "c", "d"], limits=Limits(strikes=3))
        assert found.quarantined == {1: "was halved"}
        assert [row["problem"] for row in found.history if row["problem"] is not None] == [
            "site b: was halved", "site b: was halved", "site b: quarantined: was halved",
        ]  # fmt: skip
        assert [(one.site, one.kind, one.reason) for one in read_notices(tmp_path)] == [
            (1, "quarantined", "was halved")
        ]
        assert read_strikes(tmp_path) == {1: ["was halved"] * 3}

    @pytest.mark.parametrize("schedule", [Synchronous(rounds=6), Sequential(passes=6)])
    def test_a_resumed_run_gives_each_verdict_once(self, tmp_path, schedule):
        settings = {"rules": [Halve((1,), strike=True)], "schedule": schedule}
        whole = fit(**settings, run_dir=tmp_path / "whole")
        for number, _ in enumerate(pt.events(MODEL, SHARDS, **settings, run_dir=tmp_path / "part")):
            if number == 3:
                break
        resumed = fit(**settings, run_dir=tmp_path / "part", resume=True)
        assert resumed.fingerprint == whole.fingerprint
        for read in (read_notices, read_strikes):
            assert read(tmp_path / "part") == read(tmp_path / "whole")

    @pytest.mark.parametrize("rounds", [1, 2, 3])
    def test_a_run_that_struck_or_quarantined_in_its_last_fold_can_be_resumed(self, tmp_path, rounds):
        settings = {"rules": [Halve((1,), strike=True)], "schedule": Synchronous(rounds=rounds), "run_dir": tmp_path}
        assert fit(**settings).fingerprint == fit(**settings, resume=True).fingerprint
        assert len(read_strikes(tmp_path)[1]) == rounds
        assert len(read_notices(tmp_path)) == (rounds == 3)

    def test_another_rule_is_another_run(self, tmp_path):
        fit(rules=[Halve((1,))], run_dir=tmp_path)
        with pytest.raises(pt.errors.RunMismatch, match="rules"):
            fit(rules=[Halve((2,))], run_dir=tmp_path, resume=True)

    def test_a_state_that_is_no_state_is_refused(self):
        class Stateless:
            def init(self, setup):
                return self

            def apply(self, proposal):
                return proposal

        words = r"rules: Stateless.init: expected a state, got Stateless: .* inherit from pt.rules.RuleState"
        with pytest.raises(InputError, match=words):
            fit(rules=[Stateless()])
        with pytest.raises(InputError, match=words):
            Chain.of([Stateless()], Setup(2), Strikes(3, SiteNames()))

    def test_a_run_calls_those_methods_that_a_state_has_and_no_others(self):
        run, _ = prepare(MODEL, SHARDS, options={"rules": [Halve((2,))]})
        run.engine.close()
        (own,) = [state for state in run.rules.states if isinstance(state, OwnState)]
        assert own in run.rules._folding
        unused = (run.rules._admitting, run.rules._observing, run.rules._guarding, run.rules._holding)
        assert not any(own in states for states in unused)

    def test_what_is_no_rule_is_refused(self):
        with pytest.raises(InputError, match="rules: expected rules, which have an `init`, got 3"):
            fit(rules=[3])


@dataclass(frozen=True)
class Wrong(RuleState):
    """A rule with a mistake, which is its own state."""

    how: str

    def init(self, setup):
        return self

    def apply(self, proposal):
        match self.how:
            case "nothing":
                return None
            case "too many shares":
                return proposal.cut(np.ones(5))
            case "no share":
                return proposal.cut(np.full(4, np.nan))
            case "more than all":
                return proposal.cut(np.full(4, 2.0))
            case "other sites":
                return replace(proposal, sites=list(reversed(proposal.sites)))
            case "other numbers":
                return replace(proposal, changes=jax.tree.map(lambda a: a.astype(np.float32), proposal.changes))
            case "not finite":
                return replace(proposal, changes=proposal.changes**np.inf)
        return proposal

    def after_fold(self, taken):
        return ["bad"] if self.how == "words" else [Remark(17, "is not here")] if self.how == "a stranger" else []


class TestMistakes:
    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ("nothing", "expected a Proposal, got NoneType"),
            ("too many shares", "expected 4 shares from 0 to 1"),
            ("no share", "expected 4 shares from 0 to 1"),
            ("more than all", "expected 4 shares from 0 to 1"),
            ("other sites", "has to leave the sites as they are"),
            ("other numbers", "expected changes of the same family, shapes and dtypes"),
            ("not finite", "made changes that are not finite"),
            ("words", "expected a list of remarks"),
            ("a stranger", "there is no site 17"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
    @pytest.mark.filterwarnings("ignore:could not broadcast")
    def test_a_mistake_in_a_rule_is_told_with_its_name(self, how, words):
        with pytest.raises(InputError, match=rf"rules: Wrong\.\w+: {words}"):
            fit(rules=[Wrong(how)])

    def test_a_rule_that_writes_into_factors_does_not_reach_the_ledger(self):
        class Writes(RuleState):
            def init(self, setup):
                return self

            def apply(self, proposal):
                for leaf in jax.tree.leaves(proposal.factors):
                    leaf += 1.0
                return proposal

        assert fit(rules=[Writes()]).fingerprint == fit().fingerprint


class TestStrikes:
    def judge(self, strikes, *remarks, held=()):
        return strikes.judge([0, 1], remarks, held)

    def test_two_good_folds_make_up_for_a_strike_unless_the_site_is_held_back(self):
        strikes, bad = Strikes(3, SiteNames()), Remark(0, "went too far", strike=True)
        assert self.judge(strikes, bad)[1] == [Notice(0, "struck", "went too far")]
        self.judge(strikes, held=[0])
        assert strikes.counts == {0: 1.0, 1: 0.0}
        self.judge(strikes)
        self.judge(strikes)
        assert strikes.counts[0] == 0

    def test_the_third_strike_is_the_last(self):
        strikes, bad = Strikes(3, SiteNames(("north", "south"))), Remark(1, "went too far", strike=True)
        kinds = [[notice.kind for notice in self.judge(strikes, bad)[1]] for _ in range(3)]
        assert kinds == [["struck"], ["struck"], ["quarantined"]]
        problems, _ = self.judge(Strikes(1, SiteNames(("north", "south"))), bad)
        assert problems == ["site south: went too far"]

    def test_a_remark_alone_is_no_strike(self):
        strikes = Strikes(1, SiteNames())
        problems, notices = self.judge(strikes, Remark(0, "was halved"))
        assert (problems, notices) == (["site 0: was halved"], [])

    def test_who_is_forgiven_begins_anew(self):
        strikes = Strikes(3, SiteNames())
        self.judge(strikes, Remark(0, "went too far", strike=True))
        strikes.forgive(0)
        assert 0 not in strikes.counts


def test_a_free_energy_after_none_at_all_is_no_fall():
    damper = pt.rules.Auto().init(Setup(sites=4, parallel=True))
    proposal = propose([0], [PRIOR])
    damper.observe(FreeEnergy(np.nan))
    damper.apply(proposal)
    damper.observe(FreeEnergy(-100.0))
    assert damper.apply(proposal).wanted == 0.25
    # What is worse than a number still is.
    damper.observe(FreeEnergy(-200.0))
    assert damper.apply(proposal).wanted == 0.0
