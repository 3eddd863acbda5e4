"""What is recorded of an environment, and that secrets never are."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moe_dispatch.site.environment import (
    MASK,
    NAMES,
    PREFIXES,
    is_recorded,
    mask_environment_values,
    mask_secrets,
    recorded_environment,
)

UPPER = st.text(string.ascii_uppercase + "_", max_size=8)
PRINTABLE = st.characters(exclude_categories=("Z", "C"), codec="utf-8")
ALNUM = string.ascii_letters + string.digits


@st.composite
def secret_names(draw: st.DrawFn) -> str:
    """A name on the allow-list's prefixes that has a secret word somewhere, in any case."""
    word = draw(st.sampled_from(["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH", "KEY"]))
    word = draw(st.sampled_from([word, word.lower(), word.title()]))
    name = draw(st.sampled_from(PREFIXES)) + draw(UPPER) + word + draw(UPPER)
    assume("TOKENS_PER_" not in name)
    return name


@given(name=secret_names(), value=st.text())
def test_a_variable_that_is_named_like_a_secret_is_dropped(name: str, value: str) -> None:
    assert recorded_environment({name: value}) == {}


@given(st.dictionaries(st.text(string.ascii_uppercase + "_", min_size=1, max_size=16), st.text(max_size=20)))
def test_only_the_allow_list_is_recorded(environment: dict[str, str]) -> None:
    recorded = recorded_environment(environment)
    assert all(name in NAMES or name.startswith(PREFIXES) for name in recorded)
    assert list(recorded) == sorted(recorded)


@given(
    scheme=st.sampled_from(["http", "https", "socks5", "s3", "redis"]),
    user=st.text(ALNUM, max_size=8),
    password=st.text(PRINTABLE, min_size=6, max_size=20),
    before=st.sampled_from(["", "proxy=", "a, ", "tcp://10.0.0.1:29500 "]),
)
def test_user_information_of_an_address_is_masked(scheme: str, user: str, password: str, before: str) -> None:
    template = before + scheme + "://{}@proxy.example:3128/path"
    assume(password not in template + user + MASK)
    recorded = recorded_environment({"NCCL_PROXY": template.format(f"{user}:{password}")})
    assert password not in recorded["NCCL_PROXY"]
    assert recorded["NCCL_PROXY"].endswith("proxy.example:3128/path")


@given(
    user=st.text(ALNUM, min_size=1, max_size=8),
    password=st.text(st.sampled_from(ALNUM + "!#$%^&*()+:"), min_size=6, max_size=20),
    before=st.sampled_from(["", "proxy=", "a,", "a "]),
)
def test_user_information_without_a_scheme_is_masked(user: str, password: str, before: str) -> None:
    assert password not in mask_secrets(f"{before}{user}:{password}@proxy.example:3128")


@given(
    prefix=st.sampled_from(["hf_", "ghp_", "github_pat_", "glpat-", "nvapi-", "sk-", "xoxb-", "AKIA"]),
    body=st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=40),
    around=st.sampled_from(["{}", "login {} now", "a={},b", "[{}]"]),
)
def test_well_known_token_forms_are_masked(prefix: str, body: str, around: str) -> None:
    masked = mask_secrets(around.format(prefix + body))
    assert body not in masked
    assert MASK in masked


@given(
    name=st.sampled_from(["token", "api_key", "apikey", "Password", "client_secret", "AWS_SECRET_ACCESS_KEY"]),
    sign=st.sampled_from(["=", ": ", " = "]),
    value=st.text(ALNUM + "/+_-", min_size=6, max_size=40),
)
def test_an_assignment_to_a_secret_inside_a_value_is_masked(name: str, sign: str, value: str) -> None:
    assume(value not in name)
    assert value not in mask_secrets(f"--flag {name}{sign}{value} --other 1")


def test_private_keys_and_authorization_headers_are_masked() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"
    assert "MIIEow" not in mask_secrets(f"before {key} after")
    assert "dXNlcjpwYXNz" not in mask_secrets("Authorization: Basic dXNlcjpwYXNz")
    assert "eyJhbGciOi" not in mask_secrets("x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig y")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker0"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"),
        ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64:/opt/nccl/lib"),
        ("UCX_TLS", "rc,cuda_copy"),
        ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "8"),
        ("NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "128"),  # a token of text, no secret
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
        ("OMP_NUM_THREADS", "2"),
        ("USE_MNNVL", "0"),
    ],
)
def test_what_explains_a_measurement_is_recorded_unchanged(name: str, value: str) -> None:
    assert recorded_environment({name: value}) == {name: value}


@pytest.mark.parametrize("name", ["HF_TOKEN", "HOME", "PATH", "WANDB_API_KEY", "AWS_PROFILE", "nccl_debug"])
def test_what_is_not_on_the_list_is_left_out(name: str) -> None:
    assert not is_recorded(name)


@given(secret=st.text(ALNUM, min_size=6, max_size=30))
def test_output_loses_the_values_of_secret_variables(secret: str) -> None:
    environment = {"WANDB_API_KEY": secret, "OMP_NUM_THREADS": "2"}
    text = mask_environment_values(f"<<{secret}>> with 2 threads", environment)
    assert text == f"<<{MASK}>> with 2 threads"


def test_the_default_is_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_AUTH", "x")
    recorded = recorded_environment()
    assert recorded["NCCL_DEBUG"] == "WARN"
    assert "NCCL_AUTH" not in recorded
