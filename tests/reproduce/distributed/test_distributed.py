"""``distributed``: comparisons on digits, resumed, and what is refused."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
import torch

from reproduce.distributed import commands, measure
from reproduce.distributed.render import SETTINGS, THESIS, markdown, pairs, row_of
from reproduce.distributed.tasks import Network, load_task
from tests.reproduce.child import RESULTS

TABLES = THESIS["tables"]
TINY = (
    "--limit",
    "600",
    "--epochs",
    "1",
    "--warm-epochs",
    "1",
    "--seeds",
    "2",
    "--rates",
    "0.01",
    "--threads",
    "1",
)


def test_compare_measures_once_and_prints_the_same_again(call, tmp_path, monkeypatch):
    arguments = (
        "distributed",
        "compare",
        *TINY,
        "--out",
        tmp_path,
        "--workers",
        "4",
        "--protocols",
    )
    arguments = (*arguments, "central,sync,fgm@4,gm:cap@T0.3,local-sgd@8+int8")
    code, printed, error = call(*arguments)
    assert (code, error) == (0, "")
    for name in ("central", "sync", "fgm@4", "gm:cap@T0.3", "local-sgd@8+int8"):
        assert f"\n| {name} " in printed
    assert "- fgm@4, k = 4: r = " in printed
    assert ", T = 0.3, rho = " in printed
    monkeypatch.setattr(commands, "run", None)  # nothing is run a second time
    assert call(*arguments) == (0, printed, "")
    file = tmp_path / "tables" / "distributed-compare.json"
    assert call("table", file)[1] == printed
    assert call("plot", file, "--out", tmp_path)[1].strip().endswith("distributed-compare.svg")
    assert (tmp_path / "tables" / "distributed-compare.png").stat().st_size > 10_000
    rows = {row["setting"]: row for row in json.loads(file.read_bytes())["rows"]}
    sync, short = rows["sync"], rows["local-sgd@8+int8"]
    models = 4 * (sync["rounds"] + 0.5) * 4 * sync["parameters"]  # up; the first model goes down
    assert models <= sync["up"] + 2 * 4 * sync["parameters"]
    assert 0 < short["bytes"] < sync["bytes"] / 8
    assert sync["up"] + sync["down"] == sync["bytes"]
    assert 0 < sync["accuracy"] <= 100
    assert sync["accuracy_interval"] >= 0


def test_the_best_rate_is_that_with_the_least_loss_on_held_out_samples(call, tmp_path):
    arguments = ["distributed", "compare", *TINY, "--no-plot", "--out", tmp_path]
    arguments[arguments.index("0.01")] = "0.000001,0.01"
    call(*arguments, "--protocols", "sync", "--widen", "0")
    (row,) = json.loads((tmp_path / "tables" / "distributed-compare.json").read_bytes())["rows"]
    assert (row["rate"], row["rates"]) == (0.01, [0.000001, 0.01])


def test_the_grid_of_rates_grows_outwards_and_the_report_warns_of_an_edge(
    call, tmp_path, monkeypatch
):
    """Here the loss falls with the rate, so that the largest is always the best."""
    asked = []

    def run(task, setting, training, rate, seed):
        asked.append(rate)
        return {"setting": setting.text, "seed": seed, "rate": rate, "parameters": 1, "bytes": 0,
                "workers": 4, "accuracy": 1.0, "validation": -rate}  # fmt: skip

    monkeypatch.setattr(commands, "run", run)
    arguments = ["distributed", "compare", *TINY, "--no-plot", "--protocols", "sync"]
    arguments[arguments.index("0.01")] = "0.01,0.02"
    _, printed, _ = call(*arguments, "--out", tmp_path / "two")
    assert sorted(set(asked)) == [0.01, 0.02, 0.04, 0.08]
    assert "Rates at the edge of those that were tried" in printed
    assert "- sync, k = 8: 0.08 of 0.01, 0.02, 0.04, 0.08\n" in printed
    asked.clear()
    _, printed, _ = call(*arguments, "--widen", "0", "--out", tmp_path / "none")
    assert sorted(set(asked)) == [0.01, 0.02]
    assert "- sync, k = 8: 0.02 of 0.01, 0.02\n" in printed


@pytest.mark.parametrize("sites", [None, 1])
def test_drift_shows_the_new_class_at_all_workers_or_at_some(call, tmp_path, sites):
    arguments = ["distributed", "drift", *TINY, "--no-plot", "--out", tmp_path]
    arguments += ["--protocols", "fgm@4", *(["--sites", sites] if sites else [])]
    code, printed, _ = call(*arguments, "--label", "3", "--optimizer", "sgd", "--warm-share", "0.3")
    assert code == 0
    where = "1 workers only" if sites else "all workers"
    assert f"Class 3 of digits comes at {where}" in printed
    assert "rounds before | in the ramp | " in printed
    file = tmp_path / "tables" / f"distributed-drift-{'some' if sites else 'all'}.json"
    (row,) = json.loads(file.read_bytes())["rows"]
    seen = row["runs"]
    cell = f"| {sum(seen['ramp_rounds']):.0f} in {sum(seen['ramp_ticks']):.0f} |"
    assert cell in " ".join(printed.split())
    assert sum(seen["rounds"]) - sum(seen["quiet_rounds"]) - sum(seen["ramp_rounds"]) == 2


def test_the_appendix_prints_the_thesis_beside_ours(call, tmp_path):
    code, printed, _ = call(
        *("distributed", "appendix", *TINY, "--epochs", "0.3", "--no-plot", "--out", tmp_path),
        *("--protocols", "fgm:cap"),
    )
    assert code == 0
    assert "Table B.4: SFCC, fgm, cap" in printed
    assert "16,681,165" in printed
    assert "Why the rows of the thesis cannot be reproduced" in printed
    assert "Table B.1" not in printed
    file = tmp_path / "tables" / "distributed-appendix.json"
    assert call("table", file)[1] == printed
    assert call("plot", file, "--out", tmp_path)[1].strip().endswith("distributed-appendix.svg")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--protocols", "fmg@3"), "there is no protocol fmg"),
        (("--protocols", "fgm@P0"), "period cannot be 0: it must be int >= 1"),
        (("--protocols", "FGM@3"), "FGM@3 is no protocol such as"),
        (("--workers", "1"), "workers is 1: it must be at least 2"),
        (("--rates", "quick"), "rates is 'quick'"),
        (("--rates", "-1"), "rates must be positive"),
        (("--seeds", "0"), "seeds is 0"),
        (("--widen", "-1"), "widen is -1"),
        (("--limit", "0"), "limit is 0"),
        (("--optimizer", "adamw"), "there is no optimizer adamw"),
        (("--warm-share", "0.9"), "warm_share is 0.9"),
        (("--limit", "20"), "samples are too few for 8 workers"),
        (("--data", "nowhere"), "there is no nowhere"),
    ],
)
def test_wrong_options_are_one_line(call, tmp_path, arguments, said):
    code, printed, error = call(
        *("distributed", "compare", "--out", tmp_path, "--no-plot", "--threads", "1"), *arguments
    )
    assert code in {2, 3}
    assert printed == ""
    assert said in error
    assert error.count("mvc:") == 1
    assert "Traceback" not in error


def test_every_table_of_the_thesis_has_its_settings():
    assert len(SETTINGS) == 19
    assert [len(table["rows"]) for table in TABLES.values()] == [19] * 8
    assert TABLES["B.4"]["rows"][3] == [85, 638, 97.98, 16_681_165]
    below = [
        rounds * 2 * workers * 4 * 3041 > sent
        for (_, _, workers), (rounds, _, _, sent) in zip(
            SETTINGS, TABLES["B.4"]["rows"], strict=True
        )
    ]
    assert [workers for (*_, workers), each in zip(SETTINGS, below, strict=True) if each] == [
        *(16, 32, 64, 128),
    ]


def test_networks_learn_each_row_by_itself():
    """The gradient of one worker's row is that of a network of its own, LSTMs included."""
    torch.manual_seed(0)
    for network in (Network(6, 3, 5), Network(6, 3, 5, depth=2), Network(4, 3, 5, 2, words=11)):
        models = torch.from_numpy(np.stack([network.first(seed) for seed in range(3)]))
        assert models.shape == (3, network.length)
        samples = torch.randn(3, 7, 6) if not network.depth else torch.randn(3, 7, 4, 6)
        if network.words:
            samples = torch.randint(0, 11, (3, 7, 4))
        together = network.logits(models, samples)
        for row in range(3):
            alone = network.logits(models[row : row + 1], samples[row : row + 1])
            torch.testing.assert_close(alone[0], together[row])


def test_the_lstm_is_that_of_torch():
    network = Network(4, 3, 5, depth=1)
    model = network.first(0)
    into, within = model[: 4 * 20].reshape(4, 20), model[80 : 80 + 100].reshape(5, 20)
    theirs = torch.nn.LSTM(4, 5, batch_first=True)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(torch.from_numpy(into.T.copy()))
        theirs.weight_hh_l0.copy_(torch.from_numpy(within.T.copy()))
        theirs.bias_ih_l0.copy_(torch.from_numpy(model[180:200].copy()))
        theirs.bias_hh_l0.zero_()
        samples = torch.randn(1, 2, 6, 4)
        last = theirs(samples[0])[0][:, -1]
        weights, bias = model[200:215].reshape(5, 3), model[215:]
        expected = last @ torch.from_numpy(weights.copy()) + torch.from_numpy(bias.copy())
        torch.testing.assert_close(
            network.logits(torch.from_numpy(model[None].copy()), samples)[0], expected
        )


def test_crimes_become_sequences_in_the_order_of_time(tmp_path):
    head = "occurrencedate,occurrencehour,premises_type,occurrencedayofweek,MCI,occurrenceday,"
    head += "occurrencedayofyear,Lat,Long\n"

    def row(day):
        kind = "Assault" if day % 2 else "Robbery"
        return f"2014/03/{day:02} 05:00:00+00,{day % 24},House,Sunday    ,{kind},{day},{day},1,2\n"

    for name, days in (("train", range(20, 0, -1)), ("test", range(28, 20, -1))):
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt") as file:
            file.write(head + "".join(map(row, days)) + "2014/03/01,1,House,,Assault,1,1,1,2\n")
    task = load_task(tmp_path)
    assert (len(task.train[1]), len(task.test[1])) == (16, 4)
    assert task.classes == ("Assault", "Robbery")
    days = task.train[0][:, :, 1]  # scaled, yet in order
    assert (days.diff(dim=1) > 0).all()
    assert not torch.equal(task.train[0][0], task.train[0][1])


def report(rows, **about):
    return {"title": "x", "about": about, "rows": rows}


def _runs(setting, accuracies, sent=(0, 0, 0), **more):
    """Figures of runs with seeds from 0."""
    return [
        {"setting": setting, "workers": 2, "parameters": 1, "rate": 1, "seed": seed, "up": 1,
         "cross_entropy": 1.0, "legacy": 1.0, "accuracy": accuracy, "bytes": sent[seed], "down": 1,
         **more}
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip


def test_intervals_are_students():
    row = row_of(_runs("x", (1.0, 2.0, 3.0)), (1.0,))
    assert row["accuracy"] == 2
    assert row["accuracy_interval"] == pytest.approx(4.30 * 1 / 3**0.5)
    assert row["runs"]["accuracy"] == [1, 2, 3]
    assert row_of(_runs("x", (1.0,)), (1.0,))["accuracy_interval"] is None


def test_bytes_are_compared_seed_by_seed():
    rows = [
        row_of(_runs(*each), (1.0,))
        for each in (
            ("central", (90.0, 90.0, 90.0)),
            ("sync", (90.0, 90.0, 90.0), (1000, 1000, 1000)),
            ("fgm@5", (90.0, 90.0, 90.0), (100, 200, 400)),
            ("gm@5", (89.0, 90.0, 91.0), (200, 600, 1600)),
            ("fgm@5+int8", (90.0, 90.0, 90.0), (50, 100, 200)),
            ("local-sgd@8", (89.6, 89.6, 89.6), (100, 100, 100)),
            ("local-sgd@16", (89.4, 89.4, 89.4), (50, 50, 50)),
        )
    ]
    found = {(each["setting"], each["against"]): each for each in pairs(rows)}
    assert [*found] == [
        ("fgm@5", "gm@5"), ("fgm@5", "sync"), ("fgm@5", "central"), ("fgm@5", "local-sgd@8"),
        ("fgm@5+int8", "fgm@5"),
    ]  # fmt: skip
    pair = found["fgm@5", "gm@5"]
    assert (pair["ratios"], pair["ratio"]) == ([2, 3, 4], 3)
    assert pair["ratio_interval"] == pair["accuracy_interval"] == pytest.approx(4.30 / 3**0.5)
    printed = markdown(report(rows))
    assert "3.00 ± 2.48" in printed
    assert "5.8 ± 9.5 x" in printed  # fewer than sync: the mean of 10, 5 and 2.5
    old = [{name: value for name, value in row.items() if name != "runs"} for row in rows]
    assert "chosen for" not in markdown(report(old))
    assert " 4.3 x |" in markdown(report(old))  # of the means


def test_a_run_that_diverges_is_one_cell():
    runs = _runs("central", (10.0, 11.0, 12.0))
    runs[1] |= {"cross_entropy": math.nan, "legacy": math.nan}
    row = row_of(runs, (1.0,))
    assert row["diverged"] == 1
    assert "accuracy" not in row
    printed = markdown(report([row]))
    assert printed.count("diverged") == 1
    assert "| diverged (1 of 3) |" in printed
    assert "nan" not in printed


def test_the_rate_of_rounds_says_what_stands_behind_it():
    runs = _runs("fgm@1", (1.0, 1.0), (1, 1), quiet_rounds=1, quiet_ticks=50, ramp_rounds=10,
                 ramp_ticks=50, accuracy_new=1.0, accuracy_known=1.0)  # fmt: skip
    printed = markdown(report([row_of(runs, (1.0,))]))
    # Clopper and Pearson of 20 in 22: 0.70839 to 0.98879
    assert "| 2 in 100 | 20 in 100 | 10.0 (2.4 to 88.2) |" in " ".join(printed.split())
    for run in runs:
        run["quiet_rounds"] = 0
    printed = markdown(report([row_of(runs, (1.0,))]))
    assert "| 0 in 100 | 20 in 100 | ∞ (4.9 to ∞) |" in " ".join(printed.split())
    for run in runs:
        run |= {"quiet_rounds": 300, "ramp_rounds": 600}
    printed = markdown(report([row_of(runs, (1.0,))]))
    assert "| 600 in 100 | 1200 in 100 | 2.0 (1.8 to 2.2) |" in " ".join(printed.split())


def test_texts_stand_beside_reviews_and_the_rest_beside_crimes():
    row = row_of(_runs("fgm:cap@T0.5", (60.0,), (7,), workers=8), (1.0,)) | {"batch_size": 16}
    row |= {"rounds": 3.0}
    for thesis, table in (("SFCC", "B.4"), ("AFFR", "B.8")):
        page = markdown(report([row], beside=thesis))
        assert [line for line in page.splitlines() if line.startswith("Table")] == [
            f"Table {table}: {thesis}, fgm, cap",
        ]


def test_a_table_says_which_settings_diverged(call, tmp_path):
    arguments = [*TINY]
    arguments[arguments.index("0.01")] = "1e38"  # the models are soon not finite
    code, printed, _ = call(
        *("distributed", "compare", *arguments, "--out", tmp_path, "--optimizer", "sgd"),
        *("--workers", "4", "--protocols", "local-sgd@4,central"),
    )
    assert code == 0
    assert printed.count("| diverged (2 of 2) |") == 2


def test_a_run_depends_on_its_seed_alone():
    pytest.importorskip("sklearn")
    task = load_task(None, 400)
    training = measure.Training(workers=4, epochs=1, warm_epochs=1)
    first, again, other = (
        measure.run(task, measure.Setting("fgm@3+exponent"), training, 0.01, seed)
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first["accuracy"] != other["accuracy"] or first["bytes"] != other["bytes"]


def test_a_setting_may_name_a_bound_of_lc():
    protocol = measure.Setting("fgm@3+lc:budget=0.05").protocol(0.01, 0)
    assert (protocol.up, protocol.down) == ("lc:budget=0.05", "lc:budget=0.05")


@pytest.mark.parametrize(
    "name",
    [
        "distributed-digits",
        "distributed-toronto",
        "distributed-toronto-rates",
        "distributed-toronto-32",
        "distributed-workers",
        "distributed-codecs",
        "distributed-periods",
        "distributed-appendix",
        "distributed-drift-seeds",
        "distributed-seeds",
        "distributed-default-toronto",
        "distributed-default-fashion",
        "distributed-texts",
        "distributed-long",
        "distributed-drift-all",
        "distributed-drift-some",
    ],
)
def test_published_tables_are_what_their_results_say(call, name):
    """results/ has the figures: whoever has them can print the page's tables."""
    code, printed, _ = call("table", RESULTS / f"{name}.json")
    assert code == 0
    page = (RESULTS.parent / "distributed/README.md").read_text()
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) >= (3 if name == "distributed-drift-seeds" else 5)
    assert not [row for row in rows if row not in page]
