import json

import pytest

from moe_dispatch.core.errors import WorkloadError
from moe_dispatch.workload.catalogue import find_model
from moe_dispatch.workload.hf_config import shape_from_hf_config

# The public configs, reduced to the fields that are read.
MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
CONFIGS = {
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "intermediate_size": 18432,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "n_group": 8,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        **MLA,
    },
    "kimi-k2": {
        "model_type": "kimi_k2",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "intermediate_size": 18432,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": 163840,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.827,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": 1536,
        **MLA,
    },
    "moonlight-16b-a3b": {
        "model_type": "deepseek_v3",
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1408,
        "intermediate_size": 11264,
        "first_k_dense_replace": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 163840,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.446,
        "q_lora_rank": None,
        **MLA,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "experts_per_token": 4,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 201088,
    },
    "glm-4-5-355b": {
        "model_type": "glm4_moe",
        "hidden_size": 5120,
        "num_hidden_layers": 92,
        "n_routed_experts": 160,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "intermediate_size": 12288,
        "first_k_dense_replace": 3,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151552,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
    },
}
LABELS = {"name", "title", "notes", "source"}


def write(tmp_path, config, name="config.json"):
    path = tmp_path / name
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", CONFIGS)
def test_public_config_gives_the_catalogue_shape(tmp_path, name):
    shape = shape_from_hf_config(write(tmp_path, CONFIGS[name]))
    assert shape.model_dump(exclude=LABELS) == find_model(name).model_dump(exclude=LABELS)


def test_nested_text_config_is_read(tmp_path):
    nested = {
        "model_type": "qwen3_vl_moe",
        "text_config": CONFIGS["qwen3-30b-a3b"],
        "vision_config": {"hidden_size": 9},
    }
    shape = shape_from_hf_config(write(tmp_path, nested))
    assert (shape.hidden, shape.num_experts) == (2048, 128)


def test_name_comes_from_the_folder_or_the_file(tmp_path):
    folder = tmp_path / "my-moe"
    folder.mkdir()
    assert shape_from_hf_config(write(folder, CONFIGS["mixtral-8x7b"])).name == "my-moe"
    assert shape_from_hf_config(write(folder, CONFIGS["mixtral-8x7b"], "mix.json")).name == "mix"


@pytest.mark.parametrize(
    ("changes", "moe_layers"),
    [
        ({"decoder_sparse_step": 2}, 24),
        ({"mlp_only_layers": [0, 5]}, 46),
        ({"first_k_dense_replace": 3}, 45),
        ({"moe_layer_freq": 4}, 12),
        ({"moe_layer_freq": [0, 1, 1] * 16}, 32),
    ],
)
def test_moe_layers_are_counted(tmp_path, changes, moe_layers):
    config = {**CONFIGS["qwen3-30b-a3b"], **changes}
    assert shape_from_hf_config(write(tmp_path, config)).num_moe_layers == moe_layers


def test_dense_model_names_what_was_looked_for(tmp_path):
    with pytest.raises(WorkloadError, match="not a mixture-of-experts config") as caught:
        shape_from_hf_config(write(tmp_path, {"model_type": "llama", "hidden_size": 4096}))
    for key in ("llama", "num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok"):
        assert key in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "holds a JSON list"),
        ("\xff", "not valid JSON"),
        ('{"num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2}', "hidden: Input should be a valid"),
        ('{"num_experts": 8, "num_experts_per_tok": 2}', "num_hidden_layers=None must be"),
        (
            json.dumps({**CONFIGS["qwen3-30b-a3b"], "num_experts_per_tok": 200}),
            "topk=200 is larger than num_experts=128",
        ),
        (json.dumps({**CONFIGS["qwen3-30b-a3b"], "scoring_func": "tanh"}), "'tanh' is not known"),
        (json.dumps({**CONFIGS["qwen3-30b-a3b"], "hidden_size": "wide"}), "hidden: Input should be a valid integer"),
    ],
)
def test_bad_files_get_one_clear_message(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(WorkloadError, match=message):
        shape_from_hf_config(path)


def test_directory_and_missing_file(tmp_path):
    with pytest.raises(WorkloadError, match="is a directory"):
        shape_from_hf_config(tmp_path)
    write(tmp_path, {})
    with pytest.raises(WorkloadError, match="is a directory") as caught:
        shape_from_hf_config(tmp_path)
    assert caught.value.fix == f"pass {tmp_path / 'config.json'}"
    with pytest.raises(WorkloadError, match="does not exist"):
        shape_from_hf_config(tmp_path / "none.json")
