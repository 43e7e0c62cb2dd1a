"""Who vouches for what was live: made, kept, and found out when somebody changed it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import mvc
from mvc.api.repository import Repository
from mvc.errors import CannotSign, InvalidConfig, MvcError, NotInstalled
from mvc.ids import CommitId
from mvc.io.ssh_keygen import Checked, sign
from mvc.model.statement import Deployment, Signature
from mvc.repo.commit.request import CommitOptions
from mvc.repo.statements.signatures import Vouched
from mvc.store.journal.entries import Entry
from tests.signing import People, people, rewrite

__all__ = ["people"]

MAGIC = b"SSHSIG\0\0\0\1"

pytestmark = pytest.mark.usefixtures("people")


def commit(repo: Repository, value: float, **more: object) -> CommitId:
    return repo.commit({"w": np.full(4, value, np.float32)}, **more).id  # type: ignore[arg-type]


def trust(repo: Repository, target: str | None = None) -> list[str]:
    return [each.signature.trust for each in repo.verify(target)]


def problems(repo: Repository) -> dict[str, tuple[str, ...]]:
    """By short id of the version, what is wrong with its deployments."""
    return {v.deployment.commit.short: v.problems for v in repo.verify() if v.problems}


@pytest.fixture
def three(repo: Repository) -> list[CommitId]:
    """Versions that Ada deployed one after the other."""
    return [commit(repo, i, deploy="prod") for i in range(3)]


def test_all_that_was_recorded_is_vouched_for(repo: Repository, three: list[CommitId]) -> None:
    repo.deploy(three[0], "edge", at="2 days ago", reason="error\nrate")
    repo.rollback("prod")
    repo.retract(three[0], "edge", reason="wrong")
    found = repo.verify()
    assert len(found) == 5 and not any(each.problems for each in found)
    assert {each.signature.signer for each in found} == {"ada@example.com"}
    assert all(each.signature.key.startswith("ssh-ed25519 SHA256:") for each in found)
    assert [each.retraction for each in found if each.deployment.retracted] == [found[0].signature]
    assert {repo.verify(id_).trust for id_ in three} == {"good"}
    assert repo.verify(repo.live("prod").deployment).signer == "ada@example.com"
    assert repo.storage.fsck(full=True).sound


def test_the_settings_decide_and_an_argument_overrides(repo: Repository, people: People) -> None:
    first = commit(repo, 0, options=CommitOptions(sign=False))
    assert repo.verify(first).trust == "unsigned"
    people.set("commits", "false")
    people.set("deployments", "false")
    with Repository.open(repo.root) as again:
        plain = commit(again, 1, deploy="prod")
        signed = commit(again, 2, deploy="prod", options=CommitOptions(sign=True))
        again.deploy(plain, "prod", sign=True)
        assert [again.verify(id_).trust for id_ in (plain, signed)] == ["unsigned", "good"]
        assert trust(again) == ["unsigned", "good", "good"]
        assert list(problems(again).values()) == [("unsigned",)]


# -- what somebody changed -------------------------------------------------------------------


def test_an_entry_that_was_rewritten_is_named(repo: Repository, three: list[CommitId]) -> None:
    def edit(entries: list[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if entry.commits and entry.commits[0].id == three[1]:
                entry = changed_deployment(entry, subject=three[0])
            yield entry

    rewrite(repo.root, edit)
    with Repository.open(repo.root) as changed:
        found = changed.verify("prod")
        assert [each.signature.trust for each in found] == ["good", "bad", "good"]
        assert "for other content than the recorded one" in found[1].problems[0]
        assert ["predecessor that its signature names" in p for p in found[2].problems] == [True]
        (problem,) = changed.storage.fsck(full=True).problems
        assert "about a statement that is not recorded" in problem.message


def changed_deployment(entry: Entry, **fields: object) -> Entry:
    return replace(
        entry,
        statements=tuple(
            replace(each, **fields) if isinstance(each, Deployment) else each
            for each in entry.statements
        ),
    )


@pytest.mark.parametrize("field", ["author", "reason", "time_ns"])
def test_who_why_and_when_are_signed(repo: Repository, three: list[CommitId], field: str) -> None:
    repo.deploy(three[0], "edge", at="2 days ago", reason="asked for")

    def edit(entries: list[Entry]) -> Iterator[Entry]:
        *rest, last = entries
        yield from rest
        yield changed_deployment(last, **{field: 5 if field == "time_ns" else "another"})

    rewrite(repo.root, edit)
    with Repository.open(repo.root) as changed:
        (found,) = changed.verify("edge")
        assert found.signature.trust == "bad"


def test_a_deployment_that_was_inserted_is_named(repo: Repository, three: list[CommitId]) -> None:
    repo.deploy(three[0], "prod", at="1 hour ago", sign=False)
    assert problems(repo) == {three[0].short: ("unsigned",)}
    repo.deploy(three[2], "prod")
    named = problems(repo)
    assert list(named) == [three[0].short]  # what follows it was signed in the knowledge of it


def test_one_that_a_signer_inserts_between_two_others_is_named(
    repo: Repository, three: list[CommitId], people: People, tmp_path: Path
) -> None:
    people.allow("eve")
    other = tmp_path / "copy"
    shutil.copytree(repo.root, other)  # a copy with the name of the original
    people.act("eve")
    with Repository.open(other) as copy:
        inserted = copy.deploy(three[0], "prod")
    people.act("ada")
    with Repository.open(repo.root) as original:
        original.deploy(three[1], "prod")
        original.remotes.add("copy", str(other))
        original.fetch("copy")
        (bad,) = [each for each in original.verify("prod") if each.problems]
        assert bad.deployment.commit == inserted.commit
        assert bad.signature.signer == "eve@example.com"
        assert bad.problems[0].startswith("inserted: ")


def test_one_that_was_taken_out_is_missed(repo: Repository, three: list[CommitId]) -> None:
    def edit(entries: list[Entry]) -> Iterator[Entry]:
        for number, entry in enumerate(entries):
            if entry.commits and entry.commits[0].id == three[1]:
                entry = replace(
                    entry, statements=entry.of(Signature)[:1], previous=entry.previous[1:2]
                )
                gone = number
            elif entry.commits and entry.commits[0].id == three[2]:
                entry = replace(entry, previous=(gone - 1, *entry.previous[1:]))
            yield entry

    rewrite(repo.root, edit)
    with Repository.open(repo.root) as changed:
        named = problems(changed)
        assert list(named) == [three[2].short]
        assert "is not on record" in named[three[2].short][0]


def test_a_retraction_without_a_signature_is_named(repo: Repository, three: list[CommitId]) -> None:
    repo.retract(three[2], "prod", sign=False)
    assert problems(repo) == {three[2].short: ("its retraction is unsigned",)}


# -- whose signatures count ------------------------------------------------------------------


def test_a_key_that_was_revoked(repo: Repository, three: list[CommitId], people: People) -> None:
    people.allow("bob")
    people.act("bob")
    with Repository.open(repo.root) as again:
        again.deploy(three[0], "prod")
    people.revoke("ada")
    with Repository.open(repo.root) as again:
        found = again.verify("prod")
        assert [each.signature.trust for each in found] == ["revoked"] * 3 + ["good"]
        assert "ada@example.com, with a revoked key" in found[0].problems[0]
        assert "its version is signed" in found[3].problems[0]  # by Ada as well


def test_a_list_of_revoked_keys_in_binary(
    repo: Repository, three: list[CommitId], people: People
) -> None:
    krl = people.folder / "krl"
    public = people.key("ada").with_suffix(".pub")
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", krl, public], check=True)
    people.set("revoked", krl)
    with Repository.open(repo.root) as again:
        assert set(trust(again)) == {"revoked"}


@pytest.mark.parametrize(
    ("options", "versions", "deployments"),
    [
        ('namespaces="mvc-version"', "good", "not-allowed"),
        ('namespaces="mvc-*"', "good", "good"),
        ('valid-before="20200101"', "unknown", "unknown"),
        ('valid-after="20200101"', "good", "good"),
    ],
)
def test_the_list_says_what_and_when(
    repo: Repository,
    three: list[CommitId],
    people: People,
    options: str,
    versions: str,
    deployments: str,
) -> None:
    people.allowed.write_text("")
    people.allow("ada", options)
    assert {repo.verify(id_).trust for id_ in three} == {versions}
    assert set(trust(repo)) == {deployments}


def test_somebody_unknown(repo: Repository, three: list[CommitId], people: People) -> None:
    people.allowed.write_text("# nobody\n")
    assert set(trust(repo)) == {"unknown"}
    found = repo.verify(three[0])
    assert (found.trust, found.signer) == ("unknown", "")
    people.set("allowed_signers", "")
    with Repository.open(repo.root) as again:
        assert again.verify(three[0]).trust == "unknown"
        with pytest.raises(InvalidConfig, match=r"sign.allowed_signers is empty"):
            again.verify()
    people.set("allowed_signers", people.folder / "nowhere")
    with Repository.open(repo.root) as again, pytest.raises(InvalidConfig, match="does not exist"):
        again.verify()


def test_the_lists_of_a_repository_count_for_nothing(repo: Repository) -> None:
    (repo.root / ".mvc" / "config.yaml").write_text("sign:\n  allowed_signers: /tmp/mine\n")
    with pytest.raises(InvalidConfig, match="a personal setting, which a repository cannot set"):
        Repository.open(repo.root)


# -- keys that cannot sign -------------------------------------------------------------------


def opened(repo: Repository) -> Repository:
    return Repository.open(repo.root)


def refused(repo: Repository) -> MvcError:
    """Why a signed commit is refused; nothing of it stays."""
    with opened(repo) as again:
        before = again.handle.store.snapshot.position
        with pytest.raises(MvcError) as caught:
            commit(again, 7, deploy="prod")
        assert again.handle.store.fresh().position == before
        assert "\n" not in caught.value.message
    return caught.value


def test_keys_that_are_not_there(repo: Repository, people: People) -> None:
    people.set("key", "")
    assert isinstance(refused(repo), CannotSign)
    people.set("key", people.folder / "nowhere")
    assert "does not exist" in refused(repo).message
    people.set("key", "id_ed25519")
    assert "absolute" in refused(repo).message
    people.set("key", people.allowed)
    assert "cannot sign with" in refused(repo).message


def test_a_passphrase_needs_an_agent(
    repo: Repository, people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.key("zoe", passphrase="secret words")
    people.allow("zoe")
    people.act("zoe")
    error = refused(repo)
    assert "passphrase" in error.message
    assert error.hint is not None and "ssh-add" in error.hint
    agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    said = dict(re.findall(r"(SSH_\w+)=([^;]+);", agent))
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", said["SSH_AUTH_SOCK"])
        ask = people.folder / "ask"
        ask.write_text("#!/bin/sh\necho secret words\n")
        ask.chmod(0o700)
        subprocess.run(
            ["ssh-add", "-q", str(people.key("zoe"))],
            env=os.environ | {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"},
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        for key in (people.key("zoe"), people.key("zoe").with_suffix(".pub")):
            people.set("key", key)
            with opened(repo) as again:
                assert again.verify(commit(again, 8)).signer == "zoe@example.com"
    finally:
        os.kill(int(said["SSH_AGENT_PID"]), 15)


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts another ``ssh-keygen`` in the place of the one that is installed."""
    folder.mkdir()
    program = folder / "ssh-keygen"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("echo 'unknown option -- Y' >&2; exit 1", NotInstalled, "too old"),
        ("echo 'Unsupported operation for -Y' >&2; exit 1", NotInstalled, "too old"),
        ("exit 1", CannotSign, "gives no reason"),
        ("echo agent refused operation >&2; exit 1", CannotSign, "agent refused"),
        ("echo nonsense", CannotSign, "made no signature"),
    ],
)
def test_programs_that_do_not_sign(
    repo: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    kind: type[MvcError],
    said: str,
) -> None:
    fake(tmp_path / "bin", monkeypatch, script)
    error = refused(repo)
    assert isinstance(error, kind) and said in error.message


def test_without_the_program(
    repo: Repository, three: list[CommitId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused(repo)
    assert isinstance(error, NotInstalled) and error.hint is not None
    with pytest.raises(NotInstalled):
        repo.verify()
    with Repository.open(repo.root) as again:
        commit(again, 9, options=CommitOptions(sign=False))


# -- what signatures survive -----------------------------------------------------------------


def vouchers(repo: Repository) -> list[tuple[object, ...]]:
    """What ``verify`` says, without what is one repository's own."""

    def shown(each: Vouched) -> tuple[object, ...]:
        deployed = each.deployment
        return deployed.id, each.signature, each.version, each.retraction, each.problems

    return [shown(each) for each in repo.verify()]


def test_maintenance_keeps_them(repo: Repository, three: list[CommitId]) -> None:
    repo.retract(three[1], "prod")
    apart = commit(repo, 9)
    before = vouchers(repo)
    signed = repo.verify(apart)
    repo.undo()
    assert repo.verify(apart) == signed
    repo.storage.forget(three[1])
    repo.storage.repack()
    repo.storage.gc(grace="0")
    assert vouchers(repo) == before
    repo.storage.rebuild_index()
    with Repository.open(repo.root) as again:
        assert vouchers(again) == before
        assert again.storage.fsck(full=True).sound
        entries = [recorded.entry for recorded in again.handle.store.snapshot.entries()]
        signed = {s.commit for entry in entries for s in entry.of(Signature)}
        assert signed == {*three, None}


@pytest.mark.parametrize("pushes", [True, False])
def test_they_travel(repo: Repository, three: list[CommitId], tmp_path: Path, pushes: bool) -> None:
    repo.retract(three[1], "prod")
    before = vouchers(repo)
    if pushes:
        Repository.init(tmp_path / "server", bare=True).close()
        repo.remotes.add("origin", str(tmp_path / "server"))
        repo.push()
    source = tmp_path / "server" if pushes else repo.root
    with mvc.clone(str(source), tmp_path / "clone") as clone:
        assert vouchers(clone) == before
        assert {clone.verify(id_).trust for id_ in three} == {"good"}
        clone.deploy(three[0], "prod")
        repo.deploy(three[2], "prod")
        repo.remotes.add("clone", str(clone.root))
        repo.fetch("clone")
        clone.fetch()
        assert not problems(repo)  # two at once, in two repositories, and both are signed
    with Repository.open(source) as there:
        assert there.storage.fsck(full=True).sound


def test_a_bucket_has_them(repo: Repository, three: list[CommitId], tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    repo.remotes.add("origin", f"bucket:{tmp_path / 'bucket'}")
    repo.push()
    with mvc.clone(f"bucket:{tmp_path / 'bucket'}", tmp_path / "clone") as clone:
        assert vouchers(clone) == vouchers(repo)


def test_several_at_once(repo: Repository, three: list[CommitId]) -> None:
    failures: list[BaseException] = []

    def work(value: int) -> None:
        try:
            with Repository.open(repo.root) as own:
                for _ in range(3):
                    own.deploy(three[value], "prod")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert trust(repo) == ["good"] * 9 and not problems(repo)


def test_one_that_others_overtake_is_signed_in_the_end(
    repo: Repository, three: list[CommitId], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ended = shutil.which("ssh-keygen"), threading.Event()
    fake(tmp_path / "bin", monkeypatch, f'sleep 0.1; exec {real} "$@"')
    plain = []

    def work() -> None:
        with Repository.open(repo.root) as own:
            while not ended.is_set():
                plain.append(own.deploy(three[0], "prod", sign=False))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with Repository.open(repo.root) as again:
            signed = again.deploy(three[1], "prod")
            other = commit(again, 9, deploy="prod")
    finally:
        ended.set()
        thread.join()
    monkeypatch.setenv("PATH", os.defpath)
    bad = {v.deployment.sequence for v in repo.verify("prod") if v.problems}
    assert bad == {each.sequence for each in plain} and len(bad) > 3
    assert repo.verify(signed).trust == repo.verify(other).trust == "good"


def test_a_recorder_signs_what_it_deploys(repo: Repository) -> None:
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mvc.watch(repo, model, optimizer, deploy="lab"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    found = repo.verify("lab")
    assert len(found) == 3 and not any(each.problems for each in found)
    assert {each.version.trust for each in found} == {"good"}


# -- what is hostile -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"SSHSIG",
        MAGIC + b"\xff" * 40,
        MAGIC + b"\0\0\0\0" * 5,
        MAGIC + b"\0\0\0\7" + b"\0\0\0\3abc" + b"\0\0\0\0" * 4,
        b"x" * (16 << 10),
    ],
)
def test_what_is_no_signature(repo: Repository, blob: bytes) -> None:
    id_ = commit(repo, 0, options=CommitOptions(sign=False))

    def make() -> Entry:
        now = repo.handle.store.now_ns()
        signature = Signature(subject=id_, of_statement=False, signed_ns=now, blob=blob)
        return Entry("sign", now, statements=(signature,))

    repo.handle.store.publish(make)
    assert repo.verify(id_).trust == "bad"
    assert repo.storage.fsck(full=True).sound


def test_a_name_in_a_signature_cannot_pass_for_a_message_of_the_program(
    repo: Repository, three: list[CommitId]
) -> None:
    def edit(entries: list[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if entry.commits and entry.commits[0].id == three[1]:
                name, other = b"\0\0\0\6sha512", b"\0\0\0\6usage:"
                signed = [
                    replace(s, blob=s.blob.replace(name, other)) if isinstance(s, Signature) else s
                    for s in entry.statements
                ]
                entry = replace(entry, statements=tuple(signed))
            yield entry

    rewrite(repo.root, edit)
    with Repository.open(repo.root) as changed:
        assert trust(changed) == ["good", "bad", "good"]
        assert changed.verify(three[1]) == Checked("bad")


@pytest.mark.parametrize("name", ["allowed_signers", "revoked"])
def test_a_list_that_cannot_be_read(repo: Repository, people: People, name: str) -> None:
    commit(repo, 0, deploy="prod")
    people.set(name, people.folder)
    match = f"sign.{name} names a file that cannot be read: .* is a folder"
    with Repository.open(repo.root) as again, pytest.raises(InvalidConfig, match=match):
        again.verify()


def test_since_names_what_is_dated_later_than_it_was_recorded(
    repo: Repository, three: list[CommitId]
) -> None:
    repo.deploy(three[0], "prod", at="2100-01-02", sign=False)
    assert repo.verify(since="2100-01-03") == ()
    (found,) = repo.verify(since="2100-01-01")
    assert found.problems == ("unsigned",)


def test_a_signature_of_another_kind_counts_for_nothing(repo: Repository, people: People) -> None:
    id_ = commit(repo, 0, options=CommitOptions(sign=False))
    now = repo.handle.store.now_ns()
    blob = sign(people.key("ada"), "git", bytes(32))
    wrong = Signature(subject=id_, of_statement=False, signed_ns=now, blob=blob)
    repo.handle.store.publish(lambda: Entry("sign", now, statements=(wrong,)))
    assert repo.verify(id_).trust == "bad"
    good = commit(repo, 1)
    ((_, row),) = repo.handle.store.snapshot.about(Signature, good)
    taken = Entry("sign", now, statements=(replace(row, subject=id_),))
    repo.handle.store.publish(lambda: taken)
    assert repo.verify(id_) == Checked("bad", key=repo.verify(good).key)


def test_grace_counts_for_signatures_too(repo: Repository) -> None:
    gone = commit(repo, 0)
    repo.undo()
    repo.storage.gc(grace=timedelta(0))
    entries = [recorded.entry for recorded in repo.handle.store.snapshot.entries()]
    assert all(s.commit != gone for entry in entries for s in entry.of(Signature))
