"""``fit`` on real ranks, as in README: each in its folder, all resume bit by bit, none hangs."""

import json
import re

import pytest

from labkit import launch
from labkit.base.files import locked
from labkit.errors import WorkerFailed
from labkit.training.records import read_records
from tests.support.trainings import ROOT, comparable

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]

RANKS = 2
REFUSED = {
    "begun by one alone": "micro-batches trained before",
    "other epochs": "rank 1 differs from rank 0 in epochs",
    "an earlier training": "holds an earlier training; give resume=True",
    "in use": "is in use by another process",
    "batches": "epoch_size: expected 11, as in the checkpoint, got 22",
    "one alone has other numbers": "learning_rate: expected 0.02, as in",
    "resumed when ended": "nothing was refused",
}


def trained(out, killed=-1, refused=0):
    """Launch the program; return each rank's report, and what each rank printed."""
    out.mkdir(exist_ok=True)
    program = ROOT / "tests" / "support" / "training_on_ranks.py"
    options = {"timeout": 500, "cluster_timeout": 200, "env": {"PYTHONPATH": str(ROOT)}}
    said = launch(program, out, killed, refused, workers=RANKS, **options)
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(RANKS)], said


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """(folder, reports of undisturbed ranks, of killed and resumed ones, output of the latter)."""
    folder = tmp_path_factory.mktemp("ranks")
    whole, _ = trained(folder / "whole")
    resumed = folder / "resumed"
    for killed in (RANKS - 1, 0):
        with pytest.raises(WorkerFailed, match=f"rank {killed}"):
            trained(resumed, killed)
    with locked(resumed / "in use", "a test"):
        again, said = trained(resumed, refused=1)
    return folder, whole, again, said


def test_a_killed_training_ends_as_an_undisturbed_one(both):
    """This includes the state that each rank alone holds."""
    _, whole, again, said = both
    for rank, (expected, report) in enumerate(zip(whole, again, strict=True)):
        assert report["digest"] == expected["digest"], rank
        assert report["records"] == expected["records"]
        # A callback kills rank 1 at 15 and then rank 0 at 12 + 15, before the checkpoints there.
        assert re.search("labkit: resumed after micro-batch 24$", said[rank], re.M), said[rank]
    # The comparison is not trivial: no two ranks hold the same state.
    assert whole[0]["digest"] != whole[1]["digest"] and whole[0]["means"] != whole[1]["means"]


def test_the_first_ranks_folder_is_the_trainings(both):
    folder, whole, _, _ = both
    for run in (folder / "whole" / "run", folder / "resumed" / "run"):
        for rank, own in enumerate((run, run / "rank_1")):
            assert comparable(read_records(own / "records.csv").rows) == whole[rank]["records"]
            assert len(list((own / "checkpoint").iterdir())) == 2
        names = {path.name for path in run.iterdir()} - {".lock"}
        assert names == {"checkpoint", "records.csv", "rank_1"}


@pytest.mark.parametrize("what", REFUSED)
def test_all_ranks_refuse_what_one_cannot_do(both, what):
    for report in both[2]:
        assert REFUSED[what] in report["refused"][what]
