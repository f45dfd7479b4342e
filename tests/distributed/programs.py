"""What ranks do in the tests: each program gives a dict of results by name."""

import os
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import mx_kernels as mx
import mx_kernels.integrations.distributed as mxd
from mx_kernels.integrations.distributed import collectives
from tests.distributed.models import (
    FORMATS,
    LAYOUTS_HERE,
    TOKENS,
    WIDTH,
    experts,
    mlp,
    of_format,
    routed,
    tokens,
    weights,
)


def mesh(kind="cpu"):
    return init_device_mesh(kind, (dist.get_world_size(),))


def products(folder):
    """Everything that takes a moment, one thing after the other."""
    found = {}
    parts = (columns, rows, sequences, layers, gradients, files, replicated, over_experts, formats)
    parts += (styles_of_torch,)
    for part in parts:
        found |= {f"{part.__name__}/{name}": t for name, t in part(folder).items()}
    return found


def columns(folder):
    found = {}
    for layout in LAYOUTS_HERE:
        here, all_of_it = mlp(layout)[0], mlp(layout)[0]
        parallelize_module(here, mesh(), mxd.Colwise())
        parallelize_module(all_of_it, mesh(), mxd.Colwise(output_layouts=Replicate()))
        found[f"{layout}/part"] = here(tokens())
        found[f"{layout}/whole"] = all_of_it(tokens())
        found[f"{layout}/weight"] = here.weight.detach()
    torch.manual_seed(1)
    plain = nn.Linear(WIDTH, 224)
    plain.weight = nn.Parameter(mx.quantize(plain.weight.detach()), requires_grad=False)
    parallelize_module(plain, mesh(), mxd.Colwise(output_layouts=Replicate()))
    found["linear"] = plain(tokens())
    return found


def rows(folder):
    found = {}
    for layout in LAYOUTS_HERE:
        for dtype in (torch.float32, torch.bfloat16):
            m = mlp(layout, dtype)
            parallelize_module(m, mesh(), {"0": mxd.Colwise(), "2": mxd.Rowwise()})
            found[f"{layout}/{dtype}"] = m(tokens(dtype=dtype))
    m = mlp()[2]
    parallelize_module(m, mesh(), mxd.Rowwise(input_layouts=Replicate()))
    torch.manual_seed(5)
    found["whole input"] = m(torch.randn(TOKENS, 224))
    found["has bias"] = torch.tensor(m.bias is not None)
    return found


def styles_of_torch(folder):
    """Its ColwiseParallel and RowwiseParallel, from what rank 0 has and from what each has."""
    found, styles = {}, {"0": ColwiseParallel(), "2": RowwiseParallel()}
    for layout in LAYOUTS_HERE:
        for source in (0, None):
            m = mlp(layout, inner=256, seed=1 if source is None else 1 + dist.get_rank())
            m[2].bias.requires_grad_()
            parallelize_module(m, mesh(), styles, src_data_rank=source)
            x = tokens().requires_grad_()
            y = m(x)
            y.square().sum().backward()
            name = f"{layout}/{source}"
            found[name], found[f"{name}/x"] = y.detach() + 0, x.grad
            found[f"{name}/bias"] = m[2].bias.grad.full_tensor()
            found[f"{name}/shape"] = torch.tensor(m[0].weight.to_local().shape)
            assert f"layout={layout}" in repr(m[0])
    try:
        parallelize_module(mlp(), mesh(), styles, src_data_rank=None)
    except ValueError as error:
        found["refusal"] = torch.tensor("multiple" in str(error))
    return found


def sequences(folder):
    """Tokens over ranks before and after: gathered, and the sum scattered."""
    m = mlp()
    styles = {
        "0": mxd.Colwise(input_layouts=Shard(0)),
        "2": mxd.Rowwise(output_layouts=Shard(0)),
    }
    parallelize_module(m, mesh(), styles)
    x = tokens(12).chunk(dist.get_world_size())[dist.get_rank()]
    return {"tokens": m(x)}


def layers(folder):
    found = {}
    for layout in LAYOUTS_HERE:
        for hidden_act in ("swiglu_oai", "silu", "relu2"):
            m = experts(hidden_act, layout)
            parallelize_module(m, mesh(), mxd.Experts())
            found[f"{layout}/{hidden_act}"] = m(tokens(), *routed())
            shape = getattr(m, m.WEIGHTS[0]).shape
            found[f"{layout}/{hidden_act}/shape"] = torch.tensor(shape)
    return found


def gradients(folder):
    m = mlp()
    parallelize_module(m, mesh(), {"0": mxd.Colwise(), "2": mxd.Rowwise()})
    x = tokens().requires_grad_()
    m(x).square().sum().backward()
    return {"x": x.grad}


def files(folder):
    """Reads a checkpoint that the test wrote, gathers it, and writes it again."""
    m = nn.ModuleDict({"mlp": mlp(seed=9), "experts": experts(), "norm": nn.LayerNorm(WIDTH)})
    with torch.no_grad():
        m["norm"].weight.zero_()
    styles = {"mlp.0": mxd.Colwise(), "mlp.2": mxd.Rowwise(), "experts": mxd.Experts()}
    parallelize_module(m, mesh(), styles)
    mxd.load(m, folder / "whole", preshuffle=True)
    found = {"y": m["mlp"](tokens()), "z": m["experts"](tokens(), *routed())}
    mxd.save(m, folder / "again")
    state = mxd.gathered(m)
    assert (state is None) == (dist.get_rank() > 0)
    held = sum(p.nbytes for p in m.parameters())
    return found | {"held": torch.tensor(held)}


def replicated(folder):
    """FSDP2: parameters are over ranks, and whole while they are used."""
    m = nn.Sequential(mx.MXLinear(weights_of(128)), nn.ReLU(), mx.MXLinear(weights_of(WIDTH, 128)))
    fully_shard(m, mesh=mesh())
    before = [type(p).__name__ for p in m.parameters()]
    assert before == ["DTensor", "DTensor"] and isinstance(next(m.parameters()), DTensor)
    rows = next(m.parameters()).to_local().shape[0]
    return {"y": m(tokens()), "rows": torch.tensor(rows)}


def weights_of(out, width=WIDTH):
    torch.manual_seed(out)
    return weights(out, width)


def over_experts(folder):
    """Each rank has experts, and tokens of its own."""
    found, rank, most = {}, dist.get_rank(), TOKENS + dist.get_world_size()
    send, ask, sent, asked = dist.all_gather_into_tensor, dist.all_reduce, [], []

    def counted(output, given, **kwargs):
        sent.append(given.nbytes)
        return send(output, given, **kwargs)

    def listed(*args, **kwargs):
        asked.append(args)
        return ask(*args, **kwargs)

    dist.all_gather_into_tensor, dist.all_reduce = counted, listed
    for layout in LAYOUTS_HERE:
        for activations in ("mxfp4", "mxint8", "bf16"):
            x, chosen = tokens(TOKENS + rank, seed=rank), routed(TOKENS + rank, seed=rank)
            name = f"{layout}/{activations}"
            for told, how in ((None, ""), (most, "/told")):
                m = experts(layout=layout, activations=activations)
                parallelize_module(m, mesh(), mxd.ExpertParallel(tokens=told))
                asked.clear()
                found[name + how] = m(x, *chosen)
                found[f"{name}{how}/bytes"] = torch.tensor(sent[-1])
                assert len(asked) == (told is None)
    try:
        m(tokens(most + 1), *routed(most + 1))
    except ValueError as error:
        found["refusal"] = torch.tensor(f"got {most + 1} tokens, expected at most" in str(error))
    dist.all_gather_into_tensor, dist.all_reduce = send, ask
    nobody = experts()
    parallelize_module(nobody, mesh(), mxd.ExpertParallel())
    x, (ids, weights) = tokens(4), routed(4)
    ids = torch.full_like(ids, 0) if rank == 0 else ids[:0]
    mine = slice(0, len(ids))
    found["all to one"] = nobody(x[mine], ids, weights[mine])
    return found


def formats(folder):
    """Weights of other blocks, cut in each way."""
    found = {}
    for format in FORMATS:
        m = of_format(mlp, format)
        parallelize_module(m, mesh(), {"0": mxd.Colwise(), "2": mxd.Rowwise()})
        found[f"{format}/columns"] = m[0](tokens())
        found[f"{format}/rows"] = m(tokens())
        for name, style in (("parts", mxd.Experts()), ("experts", mxd.ExpertParallel())):
            m = of_format(experts, format)
            parallelize_module(m, mesh(), style)
            found[f"{format}/{name}"] = m(tokens(), *routed())
            mxd.save(m, folder / f"{format} {name}")
        m = of_format(mlp, format)
        try:
            fully_shard(m, mesh=mesh())
            found[f"{format}/replicated"] = m(tokens())
        except ValueError as error:
            found[f"{format}/refused"] = torch.tensor("multiples of 128" in str(error))
    return found


def transformers_plan(folder):
    """A model of transformers by its own plan, our layers in it."""
    import transformers  # noqa: PLC0415  only this program needs it

    from mx_kernels.integrations.transformers import MXConfig  # noqa: PLC0415

    found = {}
    for name in ("saved", "floats"):
        more = {} if name == "saved" else {"quantization_config": MXConfig(activations="mxint8")}
        config = transformers.DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder / name, distributed_config=config, dtype=torch.float32, **more
        )
        layer = model.model.layers[0]
        with torch.no_grad():
            found[name] = model(torch.arange(9)[None]).logits
        found[f"{name}/rows"] = torch.tensor(layer.mlp.up_proj.weight.shape)
        found[f"{name}/heads"] = torch.tensor(layer.self_attn.q_proj.weight.shape)
    try:
        model.save_pretrained(folder / "not written")
    except NotImplementedError as error:
        found["refusal"] = torch.tensor("without a tp_plan" in str(error))
    return found


def transformers_experts(folder):
    """Models of experts by transformers' plans; gpt-oss has none, and its experts get styles."""
    import transformers  # noqa: PLC0415  only this program needs it

    import mx_kernels.integrations.transformers  # noqa: F401, PLC0415  reads our weights

    found = {}
    load = partial(transformers.AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
    asked = partial(transformers.DistributedConfig, tp_size=dist.get_world_size())
    for name in ("qwen3_moe", "mixtral", "gpt_oss"):
        if name == "gpt_oss":
            model = load(folder / name)
            parallelize_module(model, mesh(), {"model.layers.*.mlp.experts": mxd.Experts()})
        else:
            model = load(folder / name, distributed_config=asked(tp_plan="auto"))
        with torch.no_grad():
            found[name] = model(torch.arange(9)[None]).logits
        layer = model.model.layers[1].mlp.experts
        found[f"{name}/shape"] = torch.tensor(layer.gate_up_proj.shape)
    try:
        plan = {"model.layers.*.mlp.experts": "moe_tp_experts"}
        load(folder / name, distributed_config=asked(tp_plan=plan))
    except NotImplementedError as error:
        found["refusal"] = torch.tensor("parallelize_module" in str(error))
    return found


def left_alone(folder, call=None):
    """The last rank dies before the others have what they wait for."""
    if call is None:
        m = mlp()
        parallelize_module(m, mesh(), {"0": mxd.Colwise(), "2": mxd.Rowwise()})
        call = partial(m, tokens())
    call()
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(3)
    call()
    return {}


def left_alone_with_experts(folder):
    """The same, of a rank that has experts."""
    m = experts()
    parallelize_module(m, mesh(), mxd.ExpertParallel())
    return left_alone(folder, partial(m, tokens(), *routed()))


def on_gpus(folder):
    """Sums and experts over GPUs that see each other's memory, and the same by NCCL."""
    device = f"cuda:{dist.get_rank()}"
    gpus = mesh("cuda")
    peers = collectives.peers_of(gpus)
    found = {"sees": torch.tensor(peers is not None)}
    torch.manual_seed(dist.get_rank())
    for dtype in (torch.bfloat16, torch.float32):
        for shape in ((1, 8), (3, 8192), (64, 8192), (65, 8192), (900, 8192), (7, 1)):
            part = torch.randn(shape, dtype=dtype, device=device)
            parts = [torch.empty_like(part) for _ in range(gpus.size())]
            dist.all_gather(parts, part)
            name = f"{dtype}/{shape[0]}x{shape[1]}"
            found[f"{name}/parts"] = torch.stack(parts).cpu()
            found[f"{name}/takes"] = torch.tensor(peers.takes(part))
            found[f"{name}/sum"] = collectives.sum_of(part, gpus, Replicate(), peers).cpu()
    for name, call in over_gpus(device, gpus):
        found[name] = call().cpu()
        found[f"{name}/replayed"] = replayed(call).cpu()
    collectives._PEERS[gpus.get_group()] = None
    for name, call in over_gpus(device, gpus):
        found[f"{name}/nccl"] = call().cpu()
    return found


def over_gpus(device, gpus):
    """Yields calls of layers over GPUs; each rank has tokens of its own."""
    for wire in ("mxfp4", "bf16"):
        layer, style = experts().to(device), mxd.ExpertParallel(wire=wire)
        x, (ids, weights) = tokens().to(device), (part.to(device) for part in routed())
        parallelize_module(layer, gpus, style)
        mine = [part.tensor_split(gpus.size())[dist.get_rank()] for part in (x, ids, weights)]
        style.tokens = len(x)
        for times in range(3):
            yield f"experts/{wire}/{times}", partial(layer, *mine)
            style.tokens += 100
    m = mlp(dtype=torch.bfloat16).to(device)
    parallelize_module(m, gpus, {"0": mxd.Colwise(), "2": mxd.Rowwise()})
    x = tokens(dtype=torch.bfloat16).to(device)
    yield "rows", partial(m, x)


def replayed(call):
    """Returns what the third replay of a CUDA graph of a call gives."""
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = call()
        for _ in range(3):
            y.zero_()
            graph.replay()
        torch.cuda.synchronize()
        return y
