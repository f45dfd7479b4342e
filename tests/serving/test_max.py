"""MAX's own pipeline with our modules: tiny models from file to token, and over HTTP.

The reference is transformers with the same kernels, in float32 as MAX is on a CPU, fed with MAX's
tokens, each of which is the best by MAX's own logits. What is MAX's own (attention, norms, rotary
embeddings) rounds elsewhere: logits differ by millionths of what they vary by, or, where that has
moved a code of the activations, by hundredths. The best two of 512 are often nearer than that.
A model is compiled once, in some minutes, and kept: the other starts are seconds.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf

import mx_kernels as mx
from bench import minilm
from bench.serving.environment import ROOT, environment, python_with_max, said
from mx_kernels.integrations import ACTIVATIONS, REST
from mx_kernels.integrations.transformers import from_pretrained
from tests.serving.generate import resident_bytes
from tests.serving.max_models import ALIKE, MODELS, NEW, PROMPTS, write_models
from tests.watchdog import BUILD_SECONDS, Limit

pytestmark = pytest.mark.deep

WORKER = str(ROOT / "bench/serving/max_worker.py")
START_SECONDS = 600
LOADING_S = 60
"""Of a start that loads its graphs, on a busy machine too; an idle one compiles for over 100."""
REQUESTS, CLIENTS = 200, 8
ABORTED = 1
"""The exit status of a command of click's after SIGINT, of which it says that it aborted."""
MOVED = 0.05
"""Of what logits vary by: what a code that moved may change them by."""
EXACT = 1e-4
"""The same where no code has moved."""
RESTS = {"llama": "mxint8", "qwen3": "mxint8", "gpt-oss": "mxint8"}
"""What is left of some as floats is quantized to: a head, a tied one, and attention too."""


@pytest.fixture(scope="module")
def python():
    """Returns the interpreter that has MAX's serving."""
    with Limit.of(BUILD_SECONDS):
        return str(python_with_max())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns where the models are."""
    folder = tmp_path_factory.mktemp("max")
    write_models(folder)
    return folder


def generated(python, folder, name, **flags):
    """Returns tokens and logits of MAX, and the seconds that it took to start."""
    out = folder / "out" / "-".join((name + os.environ.get(REST, ""), *flags))
    job = {"folder": str(folder / name), "out": str(out), "prompts": PROMPTS, "new": NEW}
    with Limit.of(BUILD_SECONDS):
        said([python, WORKER, json.dumps(job | {"flags": flags})])
    found = json.loads((out / "found.json").read_text())
    return found["tokens"], np.load(out / "logits.npy"), found["start_seconds"]


def reference(source: Path, rest: str | None = None):
    """Returns a model of transformers with our layers."""
    options = {"activations": "mxint8"}
    if "quantization_config" in json.loads((source / "config.json").read_text()):
        return from_pretrained(source, rest=rest, dtype=torch.float32, **options)
    model = tf.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    model = mx.convert(model, **options)
    return mx.convert(model, format=rest, include="lm_head", **options) if rest else model


def expected(model, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """Returns the logits of transformers where each of the tokens was chosen."""
    with torch.no_grad():
        found = model(torch.tensor([prompt + tokens[:-1]]), logits_to_keep=len(tokens))
    return found.logits[0].numpy()


def kept(python, folder, name) -> dict[str, str]:
    """Returns the flag with which a model's graphs are loaded: those of a Llama in MXFP4 are one.

    They are compiled at the first call.
    """
    graphs = "llama" if name in ALIKE else name
    mefs = folder / f"{graphs}{os.environ.get(REST, '')}-mefs"
    if not mefs.exists():
        generated(python, folder, graphs, export_mefs=str(mefs))
    return {"precompiled_mefs": str(mefs)}


@pytest.mark.parametrize("name", MODELS)
def test_max_generates_what_transformers_does(python, folder, monkeypatch, name):
    monkeypatch.setenv(ACTIVATIONS, "mxint8")
    tokens, logits = generated(python, folder, name, **kept(python, folder, name))[:2]
    model = reference(folder / name)
    for prompt, own, values in zip(PROMPTS, tokens, logits, strict=True):
        theirs = expected(model, prompt, own)
        assert np.abs(values - theirs).max() <= MOVED * theirs.std()
        assert own == values.argmax(-1).tolist()
    assert len({tuple(own) for own in tokens}) > 1


@pytest.mark.parametrize("name", RESTS)
def test_what_is_left_as_floats_is_quantized_as_transformers_has_it(
    python, folder, monkeypatch, name
):
    monkeypatch.setenv(ACTIVATIONS, "mxint8")
    monkeypatch.setenv(REST, RESTS[name])
    tokens, logits, _ = generated(python, folder, name, **kept(python, folder, name))
    model, floats = reference(folder / name, RESTS[name]), reference(folder / name)
    least = []
    for prompt, own, values in zip(PROMPTS, tokens, logits, strict=True):
        theirs = expected(model, prompt, own)
        off = np.abs(values - theirs).max(-1) / theirs.std()
        assert off.max() <= MOVED
        assert own == values.argmax(-1).tolist()
        left = np.abs(values[0] - expected(floats, prompt, own)[0]).max() / theirs.std()
        least.append((off.min(), left))
    off, left = np.array(least).T
    assert off.min() <= EXACT and left.min() > 10 * EXACT, "heads of floats are no nearer"


def test_a_second_start_compiles_nothing(python, folder, monkeypatch, tmp_path):
    """Not by MAX's own cache either, in which a first start may have found its graphs."""
    monkeypatch.setenv(ACTIVATIONS, "mxint8")
    flags = kept(python, folder, "llama")
    first = json.loads((folder / "out" / "llama-export_mefs" / "found.json").read_text())
    monkeypatch.setenv("MODULAR_CACHE_DIR", str(tmp_path))
    tokens, _, seconds = generated(python, folder, "llama", **flags)
    assert tokens == first["tokens"] and seconds < LOADING_S
    assert not [path for path in tmp_path.rglob("*") if "mef" in path.parts and path.is_file()]


# Sentences

TEXT = "Kernels multiply small numbers, and few of them are alike."


def test_max_encodes_what_transformers_does(python, tmp_path, monkeypatch):
    """`max encode` prints a sentence's embedding, the mean of its tokens."""
    monkeypatch.setenv(ACTIVATIONS, "mxint8")
    source = minilm.model_folder()
    command = [str(Path(python).parent / "max"), "encode", "--model", str(source)]
    options = ["--custom-architectures", "mx_kernels.max_pipelines", "--devices", "cpu"]
    options += ["--quantization-encoding", "float32", "--max-length", "128", "--prompt", TEXT]
    with Limit.of(BUILD_SECONDS):
        printed = said([*command, *options])
    numbers = printed.partition("Embeddings: [")[2].partition("]")[0]
    got = torch.tensor([float(number) for number in numbers.split()])
    words = tf.AutoTokenizer.from_pretrained(source)(TEXT, return_tensors="pt")
    model = tf.AutoModel.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        floats = model(**words).last_hidden_state[0].mean(0)
        wanted = mx.convert(model, activations="mxint8")(**words).last_hidden_state[0].mean(0)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= MOVED * wanted.std()
    assert (wanted - floats).abs().max() > 2 * MOVED * wanted.std(), "the weights are not ours"


# Over HTTP


@pytest.fixture(scope="module")
def server(python, folder):
    """Returns the port of a server and its process; it ends within a minute, with no error."""
    mefs = kept(python, folder, "llama")["precompiled_mefs"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    # What a shell runs in the background ignores SIGINT, and hands that down.
    command = ["env", "--default-signal=INT", str(Path(python).parent / "max"), "serve"]
    command += ["--model", str(folder / "llama")]
    options = ["--custom-architectures", "mx_kernels.max_pipelines", "--devices", "cpu"]
    options += ["--quantization-encoding", "float32", "--max-length", "512"]
    options += ["--max-batch-size", str(CLIENTS), "--precompiled-mefs", mefs]
    options += ["--host", "localhost", "--port", str(port)]
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**environment(), ACTIVATIONS: "mxint8", "MAX_SERVE_DISABLE_TELEMETRY": "1"},
        )
    try:
        _wait_for(port, process, log)
        yield port, process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ABORTED, log.read_text()[-4000:]
        text = log.read_text()
        assert text.rstrip().endswith("Aborted!") and "Traceback" not in text, text[-4000:]
    finally:
        process.kill()


def _wait_for(port, process, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        connection = http.client.HTTPConnection("localhost", port, timeout=10)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(1)
        finally:
            connection.close()
    raise AssertionError(f"no server after {START_SECONDS} s:\n{log.read_text()[-4000:]}")


def streamed(port, model, prompt, new):
    """Returns the tokens that come one after the other behind a prompt, and in how many pieces."""
    connection = http.client.HTTPConnection("localhost", port, timeout=120)
    body = {"model": model, "prompt": " ".join(f"w{t}" for t in prompt), "max_tokens": new}
    body |= {"temperature": 0, "stream": True, "ignore_eos": True}
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read().decode()
        lines = answer.read().decode().splitlines()
    finally:
        connection.close()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    pieces = [choice["text"] for choice in choices if choice["text"]]
    return [int(word.removeprefix("w")) for word in "".join(pieces).split()], len(pieces)


def test_200_requests_are_answered_as_they_are_alone_without_error_or_growth(server, folder):
    port, process = server
    model, texts = str(folder / "llama"), [prompt for prompt in PROMPTS if len(prompt) < 64]
    alone = [streamed(port, model, prompt, NEW) for prompt in texts]
    assert all(len(tokens) == NEW and pieces > 1 for tokens, pieces in alone)
    first = json.loads((folder / "out" / "llama-export_mefs" / "found.json").read_text())["tokens"]
    assert [tokens for tokens, _ in alone] == [
        own for own, prompt in zip(first, PROMPTS, strict=True) if prompt in texts
    ]

    def ask(number):
        return streamed(port, model, texts[number % len(texts)], NEW)[0]

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(ask, range(REQUESTS // 4)))
        warm = resident_bytes(process.pid)
        answers += clients.map(ask, range(REQUESTS // 4, REQUESTS))
    assert answers == [alone[number % len(texts)][0] for number in range(REQUESTS)]
    assert resident_bytes(process.pid) < 1.05 * warm
