"""Files as the package ``onnx`` writes them: every initializer that it reads is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mvc
from mvc.files import open_file
from mvc.model.hashing import blob_id
from mvc.model.tensor import TensorSpec
from mvc.system import FileSystem

onnx = pytest.importorskip("onnx")

from onnx import TensorProto as Proto  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((60, 50)).astype(np.float32)


def _model(tensors: list[Any], nodes: list[Any] | None = None, **more: Any) -> Any:
    out = helper.make_tensor_value_info("y", Proto.FLOAT, None)
    identity = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([*(nodes or []), identity], "g", [], [out], tensors, **more)
    return helper.make_model(
        graph, producer_name="tests", opset_imports=[helper.make_opsetid("", 21)]
    )


def _raw(code: int, name: str) -> Any:
    width = helper.tensor_dtype_to_np_dtype(code).itemsize
    return helper.make_tensor(name, code, (6, 4), RANDOM.bytes(24 * width), raw=True)


def _dtypes() -> Any:
    codes = [
        *range(Proto.FLOAT, Proto.FLOAT8E5M2FNUZ + 1),
        getattr(Proto, "FLOAT8E8M0", Proto.FLOAT),
    ]
    made = [_raw(code, f"t{i}") for i, code in enumerate(codes) if code != Proto.STRING]
    return _model([*made, helper.make_tensor("four", Proto.INT4, (3, 2), b"abc", raw=True)])


def _fields() -> Any:
    """Numbers in fields of their type, not in ``raw_data``."""
    made = {
        "float": (Proto.FLOAT, [1.5, -0.0, float("inf")]),
        "double": (Proto.DOUBLE, [1.5, 2.5, float("nan")]),
        "complex64": (Proto.COMPLEX64, [1 + 2j, 3j, 0]),
        "complex128": (Proto.COMPLEX128, [1 + 2j, 3j, 0]),
        "int64": (Proto.INT64, [1, -1, 1 << 40]),
        "text": (Proto.STRING, [b"a", b"bc", b""]),
    }
    return _model([helper.make_tensor(n, code, (3,), values) for n, (code, values) in made.items()])


def _shapes() -> Any:
    arrays = {"scalar": np.float32(3), "empty": np.zeros((0, 3), np.float32), "bool": ROWS > 0,
              "deep": ROWS.reshape(2, 3, 5, 10, 10, 1)}  # fmt: skip
    return _model([numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()])


def _subgraphs() -> Any:
    def branch(name: str) -> Any:
        out = helper.make_tensor_value_info(f"{name}.y", Proto.FLOAT, None)
        inner = [numpy_helper.from_array(ROWS + len(name), f"{name}.w")]
        node = helper.make_node("Identity", [f"{name}.w"], [f"{name}.y"])
        return helper.make_graph([node], name, [], [out], inner)

    choice = helper.make_node(
        "If", ["c"], ["z"], then_branch=branch("then"), else_branch=branch("no")
    )
    loop = helper.make_node("Loop", ["n", "c"], ["l"], body=branch("body"))
    return _model([numpy_helper.from_array(ROWS, "w")], [choice, loop])


def _sparse() -> Any:
    values = numpy_helper.from_array(ROWS[0], "values")
    places = numpy_helper.from_array(np.arange(50, dtype=np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [1000])
    return _model([numpy_helper.from_array(ROWS, "w")], sparse_initializer=[sparse])


def _functions() -> Any:
    constant = helper.make_node("Constant", [], ["big"], value=numpy_helper.from_array(ROWS))
    opset = [helper.make_opsetid("", 21)]
    function = helper.make_function("mine", "F", [], ["big"], [constant], opset)
    model = _model([numpy_helper.from_array(ROWS + 1, "w")])
    model.functions.append(function)
    return model


def _constants() -> Any:
    nodes = [
        helper.make_node("Constant", [], [f"c{n}"], value=numpy_helper.from_array(ROWS[:n]))
        for n in (1, 59)
    ]
    return _model([numpy_helper.from_array(ROWS, "w")], nodes)


def _large() -> Any:
    net = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(10)))
    return _model([numpy_helper.from_array(t.numpy(), n) for n, t in net.state_dict().items()])


def _documented() -> Any:
    model = _model([numpy_helper.from_array(ROWS, "w")])
    model.graph.initializer[0].doc_string = "a tensor\n" * 1000
    model.graph.doc_string = "a graph"
    helper.set_model_props(model, {"author": "ada", "location": "here"})
    return model


MODELS: dict[str, Callable[[], Any]] = {
    maker.__name__.strip("_"): maker
    for maker in (_dtypes, _fields, _shapes, _subgraphs, _sparse, _functions, _constants, _large,
                  _documented)
}  # fmt: skip


def _initializers(graph: Any) -> Iterator[Any]:
    """As the package has them, those of subgraphs and the values of sparse ones, too."""
    yield from graph.initializer
    yield from (sparse.values for sparse in graph.sparse_initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _initializers(attribute.g)


def _seen(repo: mvc.Repository, paths: list[str], graph: Any) -> int:
    """Compares every initializer with what the version holds; how many there were."""
    files = [repo.manifest("HEAD").by_path[path] for path in paths]
    found = {tensor.key: tensor for file in files for tensor in file.tensors}
    count = 0
    for each in _initializers(graph):
        if each.data_type == Proto.STRING or each.int64_data:
            assert each.name not in found  # coded one by one
            continue
        bits = numpy_helper.to_array(each).tobytes() if not each.HasField("raw_data") else None
        data = each.raw_data if bits is None else bits
        tensor = found.pop(each.name)
        shape = tensor.spec.shape if each.data_type == Proto.INT4 else tuple(each.dims)
        assert tensor.spec.shape == shape
        assert tensor.id == blob_id(TensorSpec(tensor.spec.dtype, shape), data)
        expected = helper.tensor_dtype_to_np_dtype(each.data_type).name
        assert tensor.spec.dtype == (expected if each.data_type != Proto.INT4 else "uint8")
        count += 1
    return count


@pytest.mark.parametrize("kind", MODELS)
def test_files_come_back_and_every_initializer_is_seen(tmp_path: Path, kind: str) -> None:
    model = MODELS[kind]()
    onnx.save(model, tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(tmp_path / "m.onnx", deploy="prod")
        assert repo.manifest("HEAD").by_path["m.onnx"].format == "onnx"
        assert _seen(repo, ["m.onnx"], onnx.load(tmp_path / "m.onnx").graph)
        (tmp_path / "m.onnx").unlink()
        repo.checkout("HEAD", to=tmp_path, force=True)
    assert (tmp_path / "m.onnx").read_bytes() == data


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", ["large", "subgraphs", "dtypes"])
def test_external_data_comes_back_and_is_seen(tmp_path: Path, kind: str, together: bool) -> None:
    model = MODELS[kind]()
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, all_tensors_to_one_file=together,
        location="m.onnx.data" if together else None, size_threshold=100,
    )  # fmt: skip
    held = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert (len(held) == 2) == together
    with mvc.Repository.init(tmp_path) as repo:
        repo.commit(tmp_path, deploy="prod")
        assert _seen(repo, [*held], onnx.load(tmp_path / "m.onnx").graph)
        for name in held:
            (tmp_path / name).unlink()
        repo.checkout("HEAD", to=tmp_path, force=True)
    assert held == {name: (tmp_path / name).read_bytes() for name in held}


def test_large_constants_of_nodes_are_named_by_what_they_make(tmp_path: Path) -> None:
    for kind, names in (("constants", {"w", "c59"}), ("functions", {"w", "big"})):
        onnx.save(MODELS[kind](), tmp_path / f"{kind}.onnx")
        with open_file(FileSystem(), tmp_path / f"{kind}.onnx", kind) as file:
            assert file.specs.keys() == names


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_export_of_torch_shares_the_tensors_of_the_state(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.ReLU(), torch.nn.Linear(30, 20))
    torch.onnx.export(net, (torch.ones(1, 40),), str(tmp_path / "m.onnx"), dynamo=False)
    with mvc.Repository.init(tmp_path) as repo:
        state = repo.commit(net.state_dict()).id
        repo.commit(tmp_path / "m.onnx")
        (file,) = repo.manifest(state).entries
        held = {tensor.key: tensor.id for tensor in file.tensors}
        found = {t.key: t.id for t in repo.manifest("HEAD").by_path["m.onnx"].tensors}
        assert found == held
        assert {each.commit for each in repo.identify(tmp_path / "m.onnx")} >= {state}
