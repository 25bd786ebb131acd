"""Small deterministic programs over a ``World``, each made to bring one thing about.

They need no Hypothesis and run in milliseconds on the toy. ``PROGRAMS`` has them by name; some want a certain
executor or setting, which their docstrings say.
"""

from __future__ import annotations

from collections.abc import Callable

from txdecode.runtime.sampling import Sampling
from txdecode.runtime.testing.checks import Tracked
from txdecode.runtime.testing.world import World
from txdecode.transactions.phase import Phase

Program = Callable[[World], None]

BUDGET = 20


SAMPLED = (
    Sampling(temperature=1.0, seed=7, logprobs=2),
    Sampling(temperature=1.5, seed=7, top_k=24, repetition_penalty=1.3, frequency_penalty=-2.0),
    Sampling(temperature=0.8, seed=2**64 - 1, top_p=0.9, min_p=0.02, presence_penalty=-2.0, min_tokens=9),
    Sampling(temperature=0.0, repetition_penalty=3.0, frequency_penalty=2.0, logprobs=0),
)
"""One of everything that changes which token comes next."""


def submit(
    world: World,
    tokens: int,
    budget: int = BUDGET,
    stop_ids: tuple[int, ...] = (),
    sampling: Sampling | None = None,
) -> Tracked:
    """A request with a prompt of ``tokens`` tokens, which must fit."""
    made = world.submit(prompt(world, tokens), budget, stop_ids, sampling=sampling)
    assert made is not None, "the pools are too small for this program"
    return made


def prompt(world: World, tokens: int) -> list[int]:
    """Some token ids, different ones for each length."""
    return [(7 * tokens + 3 * index) % world.description.vocab_size for index in range(tokens)]


def decode(world: World) -> None:
    """Requests of several lengths decode together."""
    for tokens in (3, 8, 13, 18):
        submit(world, tokens)
    world.finish()


def begin_with_one_token(world: World) -> None:
    """A request whose first round starts from nothing, where another one has been."""
    submit(world, 8)
    world.run()
    submit(world, 1)
    world.finish()


def repeat(world: World) -> None:
    """Texts that have been there before, for drafters that copy."""
    vocab_size = world.description.vocab_size
    # The last one goes on as the toy likes to.
    ring = [6]
    while len(ring) < 16:
        ring.append((ring[-1] * 5 + 3) % vocab_size)
    for tokens in (prompt(world, 2) * 4, prompt(world, 5) * 4, ring * 2):
        made = world.submit(tokens, 30)
        assert made is not None, "the pools are too small for this program"
    world.finish()


def roll_back(world: World) -> None:
    """Rounds fail in the middle, and are run again. An executor that is driven by verbs."""
    submit(world, 8)
    world.step(3)
    world.fault("verify", "late")
    world.step(2)
    world.fault("accept", "before")
    world.step(2)
    world.finish()


def preempt(world: World) -> None:
    """A running request gives up its state and comes back."""
    first = submit(world, 13)
    submit(world, 8)
    world.step(4)
    world.preempt(first)
    world.finish()


def run_out_of_pages(world: World) -> None:
    """Requests that do not fit together. Pools with room for about two of them."""
    for tokens in (3, 8, 13, 18):
        submit(world, tokens, BUDGET + 4)
    world.finish()


def fail_to_settle(world: World) -> None:
    """The device fails after the record is in the log, also in the last round of a request."""
    submit(world, 8, 3)
    submit(world, 8, 12)
    for _ in range(8):
        world.fault("settle", "before")
        world.step()
    world.finish()


def stop_on_the_last_token(world: World) -> None:
    """A stop token comes where the budget ends."""
    text = world.harness.oracle(prompt(world, 13), BUDGET, frozenset())
    budget = next(index + 1 for index in range(4, BUDGET) if text[index] not in text[:index])
    submit(world, 13, budget, (text[budget - 1],))
    world.finish()


def reopen(world: World) -> None:
    """A log in which everything is finished is taken up again."""
    submit(world, 3, 4)
    world.run()
    world.reopen()
    submit(world, 8, 4)
    world.finish()


def crash(world: World) -> None:
    """The process dies in the middle of several texts, twice."""
    for tokens in (3, 8, 13):
        submit(world, tokens)
    world.step(5)
    world.crash()
    submit(world, 18)
    world.step(3)
    world.crash()
    world.finish()


def close_in_the_middle(world: World) -> None:
    """The runtime is closed while requests run, one of them not taken in yet."""
    submit(world, 8)
    world.step(4)
    submit(world, 3)
    world.reopen()
    world.finish()


def lose_power(world: World) -> None:
    """The machine dies, and with it what was not synced. A log with durability ``fsync``."""
    submit(world, 8)
    world.step(5)
    world.crash(cut=1.0)
    world.finish()


def fill_the_disk(world: World) -> None:
    """The log can't be written any more."""
    submit(world, 8)
    submit(world, 13)
    world.fail_disk("torn", 9)
    world.step(6)
    world.finish()


def ask_for_too_much(world: World) -> None:
    """Requests at the edge of what fits the context. Pools in which a sequence of that length fits."""
    context = world.description.context
    for tokens, budget in ((context, 1), (context - 1, 5), (context + 3, 1), (5, 1)):
        world.submit(prompt(world, tokens), budget)
    world.finish()


def cancel_before_the_first_step(world: World) -> None:
    """A request is cancelled before it is resident."""
    world.cancel(submit(world, 8))
    world.step()
    world.finish()


def cancel_behind_a_fault(world: World) -> None:
    """The caller gives up at the moment in which a round fails. An executor that is driven by verbs."""
    submit(world, 8)
    world.step(3)
    world.interrupt_at("cancel", Phase.ROLLBACK)
    world.fault("verify", "before")
    world.step(2)
    world.finish()


def leave_a_flight(world: World) -> None:
    """A request is cancelled while its program runs, and the next one takes the room. A fused executor whose
    launches take some polls."""
    submit(world, 13)
    world.step(4)
    world.interrupt_at("cancel", Phase.VERIFY)
    while world.live:
        world.step()
    submit(world, 18)
    world.finish()


def preempt_a_flight(world: World) -> None:
    """A request is preempted while its program runs. A fused executor whose launches take some polls."""
    submit(world, 8)
    world.step(4)
    world.interrupt_at("preempt", Phase.VERIFY)
    world.finish()


def sample(world: World) -> None:
    """Sampled requests decode together, some of them with penalties, a minimum length, logprobs. An executor that
    samples."""
    for tokens, sampling in zip((3, 8, 13, 18), SAMPLED, strict=True):
        submit(world, tokens, stop_ids=(5, 9), sampling=sampling)
    world.finish()


def sample_and_crash(world: World) -> None:
    """Sampled requests are preempted between Draft and Verify, and go on after the process died. An executor that
    samples."""
    made = [submit(world, 5 + 4 * index, sampling=sampling) for index, sampling in enumerate(SAMPLED)]
    world.step(4)
    world.interrupt_at("preempt", Phase.VERIFY)
    world.step(2)
    world.preempt(made[1])
    world.step(2)
    world.crash()
    world.step(2)
    world.finish()


def sample_by_chain(world: World) -> None:
    """Requests under the chain law, whose text depends on the drafts. An executor that samples."""
    for tokens in (3, 8, 13):
        submit(world, tokens, sampling=Sampling(temperature=1.0, seed=tokens, law="chain", logprobs=1))
    world.step(5)
    world.crash()
    world.finish()


def rotate(world: World) -> None:
    """The log goes on in new files, and the process dies between them. Small segments."""
    for tokens in (3, 8, 13):
        submit(world, tokens, 40, sampling=SAMPLED[0])
    world.step(12)
    world.crash()
    submit(world, 18, 40)
    world.step(9)
    world.reopen()
    world.finish()


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        decode,
        begin_with_one_token,
        repeat,
        roll_back,
        preempt,
        run_out_of_pages,
        fail_to_settle,
        stop_on_the_last_token,
        reopen,
        crash,
        close_in_the_middle,
        lose_power,
        fill_the_disk,
        ask_for_too_much,
        cancel_before_the_first_step,
        cancel_behind_a_fault,
        leave_a_flight,
        preempt_a_flight,
        sample,
        sample_and_crash,
        sample_by_chain,
        rotate,
    )
}
