"""hyper_parameters: no secret becomes a param of a version, and plain values do."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import numpy as np
import pytest
import torch

from mvc.frameworks.common.hyper_parameters import hyper_parameters

SECRETS: dict[str, Any] = {
    "mapping": {"api_keys": {"openai": "sk-abc"}},
    "mapping-of-a-plain-name": {"token": {"value": "hf_abc"}},
    "mapping-of-a-number": {"tokens": {"hf": 5}},
    "mapping-deep": {"hub": {"key": {"more": {"id": "abc"}}}},
    "namespace": {"api_keys": Namespace(openai="sk-abc")},
    "namespaces": Namespace(api_keys=Namespace(openai="sk-abc")),
    "dotted": {"tokens.hf": "abc"},
    "dotted-id": {"key.id": "abc"},
    "list-under-a-secret-name": {"keys": ["abc"]},
    "numbers-under-a-secret-name": {"token": [1, 2]},
    "password-int": {"password": 4711},
    "password-float": {"db_password": 47.5},
    "password-numpy": {"password": np.float64(2)},
    "password-tensor": {"password": torch.tensor(3)},
    "pin-of-an-api": {"api_key": 4711},
    "access-token-int": {"accessToken": 4711},
    **{
        name: {name: "abc"}
        for name in (
            "auth", "http_auth", "authorization", "Authorization", "bearer", "cookie", "cookies",
            "credential", "credentials", "passphrase", "passwd", "pwd", "DB_PWD", "private",
            "private_key", "client_secret", "hf_token", "PASSWORD",
        )
    },
    "headers": {"headers": {"Authorization": "Basic abc"}},
    "login": {"url": "https://u:p@h/x"},
    "login-in-a-list": {"urls": ["https://h/x", "https://u:p@h/x"]},
    "login-in-a-tuple": {"urls": ("https://u:p@h/x",)},
    "login-with-a-slash": {"url": "postgresql://u:p/w@h/x"},
    **{
        f"query-{name}": {"url": f"https://h/x?a=1&{name}=abc"}
        for name in (
            "access_token", "token", "key", "sig", "signature", "password", "api_key",
            "X-Amz-Signature", "client_secret", "SIG",
        )
    },
    "query-first": {"url": "https://h/x?sig=abc"},
    "query-in-a-list": {"urls": ["https://h/x?token=abc"]},
    "fragment": {"url": "https://h/x#access_token=abc"},
}  # fmt: skip

KEPT: dict[str, Any] = {
    "num_key_value_heads": 8, "max_tokens": 512, "pad_token_id": 0, "eos_token_id": 2,
    "tokens_per_batch": 4096, "key_scale": 0.5, "bos_token_id": None, "use_token_type": True,
    "tokens_seen": np.int64(3), "tokenizer_name": "gpt2", "author": "me", "layers": [4, 8],
    "data": "https://h/x?split=train&design=2", "port": "http://localhost:8080/x@v2",
    "hub": "https://h/models/x@main", "mail": "me@host", "stages": ["a", "b"],
}  # fmt: skip


@pytest.mark.parametrize("source", SECRETS.values(), ids=SECRETS)
def test_secrets_are_left_out(source: Any) -> None:
    assert hyper_parameters(("", source)) == {}
    assert hyper_parameters(("optimizer", source)) == {}


def test_plain_values_are_kept() -> None:
    found = hyper_parameters(("net", KEPT))
    texts = {name: v.item() if isinstance(v, np.generic) else v for name, v in KEPT.items()}
    assert found == {
        f"net.{name}": v if isinstance(v, str) else json.dumps(v) for name, v in texts.items()
    }


def test_what_is_beside_a_secret_is_kept() -> None:
    source = {"keys": {"a": "abc"}, "net": {"width": 4, "token": "abc"}, "urls": ["//u:p@h"]}
    assert hyper_parameters(("", source)) == {"net.width": "4"}
