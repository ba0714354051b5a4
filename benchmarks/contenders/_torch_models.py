"""The models of the cases in PyTorch, with channels first, and their initial weights (``draw``)."""

import importlib
from collections.abc import Callable
from typing import Any

from _cases import (
    CATEGORIES,
    COUNTS,
    CROSSED,
    GPT2_HEADS,
    GPT2_LAYERS,
    GPT2_LENGTH,
    GPT2_VOCABULARY,
    GPT2_WIDTH,
    MOBILENET_BLOCKS,
    RESNET50_CLASSES,
    RESNET50_STAGES,
    UNET_LEVELS,
    VIT_LAYERS,
    VIT_WIDTH,
    VOCABULARY,
    WORDS,
    draw,
)

torch: Any = importlib.import_module("torch")
nn: Any = torch.nn
relu: Any = nn.functional.relu


class CNN(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.conv1 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dense0, self.logits = nn.Linear(1600, 64), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = nn.functional.max_pool2d(relu(self.conv0(x)), 2)
        x = nn.functional.max_pool2d(relu(self.conv1(x)), 2)
        return self.logits(relu(self.dense0(x.flatten(1))))


class MLP(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self, inputs: int, *units: int) -> None:
        super().__init__()
        for i, n in enumerate(units):
            setattr(self, f"dense{i}", nn.Linear(inputs, n))
            inputs = n
        self.logits, self._depth = nn.Linear(inputs, 10), len(units)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        for i in range(self._depth):
            x = relu(getattr(self, f"dense{i}")(x))
        return self.logits(x)


class ResNet(nn.Module):
    """The network of ``_models.py``, except that a convolution with stride 2 pads both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), norm2d(16)
        channels, self._blocks = 16, ((16, 1), (32, 2), (64, 2))
        for i, (filters, stride) in enumerate(self._blocks):
            setattr(self, f"block{i}_conv0", nn.Conv2d(channels, filters, 3, stride, 1, bias=False))
            setattr(self, f"block{i}_conv1", nn.Conv2d(filters, filters, 3, padding=1, bias=False))
            setattr(self, f"block{i}_norm0", norm2d(filters))
            setattr(self, f"block{i}_norm1", norm2d(filters))
            if stride > 1:
                setattr(self, f"block{i}_shortcut", nn.Conv2d(channels, filters, 1, stride, bias=False))
            channels = filters
        self.logits = nn.Linear(channels, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = relu(self.norm(self.conv(x)))
        for i, (_, stride) in enumerate(self._blocks):
            y = relu(getattr(self, f"block{i}_norm0")(getattr(self, f"block{i}_conv0")(x)))
            y = getattr(self, f"block{i}_norm1")(getattr(self, f"block{i}_conv1")(y))
            x = relu(y + (x if stride == 1 else getattr(self, f"block{i}_shortcut")(x)))
        return self.logits(x.mean((2, 3)))


def norm2d(channels: int) -> Any:
    """Make a batch normalization with Keras's settings."""
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Attention(nn.Module):
    """Attention with several heads."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attention_output = (nn.Linear(width, width) for _ in range(4))
        self._heads, self._causal = heads, causal

    def forward(self, x: Any) -> Any:
        """Return the attention's output, in the shape of `x`."""
        q, k, v = (project(x).unflatten(-1, (self._heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self._causal)
        return self.attention_output(y.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 128)
        for i in range(4):
            setattr(self, f"block{i}_norm0", nn.LayerNorm(128, eps=1e-3))
            setattr(self, f"block{i}_attention", Attention(128, 4, causal=True))
            setattr(self, f"block{i}_norm1", nn.LayerNorm(128, eps=1e-3))
            setattr(self, f"block{i}_dense0", nn.Linear(128, 512))
            setattr(self, f"block{i}_dense1", nn.Linear(512, 128))
        self.norm, self.logits = nn.LayerNorm(128, eps=1e-3), nn.Linear(128, VOCABULARY)

    def forward(self, x: Any) -> Any:
        """Return the logits of each position."""
        x = self.embedding(x)
        for i in range(4):
            x = x + getattr(self, f"block{i}_attention")(getattr(self, f"block{i}_norm0")(x))
            y = getattr(self, f"block{i}_dense0")(getattr(self, f"block{i}_norm1")(x))
            x = x + getattr(self, f"block{i}_dense1")(relu(y))
        return self.logits(self.norm(x))


class LSTM(nn.Module):
    """The network of ``_models.py``. Of PyTorch's two biases, which are added, one stays 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.logits = nn.Embedding(WORDS, 128), nn.LSTM(128, 128, batch_first=True), nn.Linear(128, 2)
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        return self.logits(self.lstm(self.embedding(x))[0][:, -1])


class MobileNet(nn.Module):
    """The network of ``_models.py``, except that a convolution with stride 2 pads both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), norm2d(16)
        channels = 16
        for i, (filters, stride) in enumerate(MOBILENET_BLOCKS):
            setattr(self, f"block{i}_depthwise", nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False))
            setattr(self, f"block{i}_norm0", norm2d(channels))
            setattr(self, f"block{i}_pointwise", nn.Conv2d(channels, filters, 1, bias=False))
            setattr(self, f"block{i}_norm1", norm2d(filters))
            channels = filters
        self.logits = nn.Linear(channels, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = relu(self.norm(self.conv(x)))
        for i in range(len(MOBILENET_BLOCKS)):
            x = relu(getattr(self, f"block{i}_norm0")(getattr(self, f"block{i}_depthwise")(x)))
            x = relu(getattr(self, f"block{i}_norm1")(getattr(self, f"block{i}_pointwise")(x)))
        return self.logits(x.mean((2, 3)))


class UNet(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        channels, bottom = 3, 2 * UNET_LEVELS[-1]
        for i, filters in enumerate(UNET_LEVELS):
            self._add_two(f"down{i}", channels, filters)
            channels = filters
        self._add_two("bottom", channels, bottom)
        channels = bottom
        for i, filters in reversed([*enumerate(UNET_LEVELS)]):
            setattr(self, f"up{i}", nn.ConvTranspose2d(channels, filters, 2, 2))
            self._add_two(f"up{i}", 2 * filters, filters)
            channels = filters
        self.logits = nn.Conv2d(channels, 3, 1)

    def _add_two(self, name: str, channels: int, filters: int) -> None:
        setattr(self, f"{name}_conv0", nn.Conv2d(channels, filters, 3, padding=1))
        setattr(self, f"{name}_conv1", nn.Conv2d(filters, filters, 3, padding=1))

    def _two(self, x: Any, name: str) -> Any:
        return relu(getattr(self, f"{name}_conv1")(relu(getattr(self, f"{name}_conv0")(x))))

    def forward(self, x: Any) -> Any:
        """Return the logits of each pixel."""
        kept = []
        for i in range(len(UNET_LEVELS)):
            kept.append(self._two(x, f"down{i}"))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self._two(x, "bottom")
        for i in reversed(range(len(UNET_LEVELS))):
            x = self._two(torch.cat([kept[i], getattr(self, f"up{i}")(x)], 1), f"up{i}")
        return self.logits(x)


class WideDeep(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        for i, n in enumerate(CATEGORIES):
            setattr(self, f"deep{i}", nn.Embedding(n, 16))
        for i, n in enumerate((*CATEGORIES, CROSSED)):
            setattr(self, f"wide{i}", nn.Embedding(n, 2))
        self.dense0, self.dense1 = nn.Linear(16 * len(CATEGORIES) + COUNTS, 512), nn.Linear(512, 256)
        self.logits = nn.Linear(256, 2)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        n = len(CATEGORIES)
        counts = torch.log1p(x[:, n + 1 :].float())
        y = torch.cat([*(getattr(self, f"deep{i}")(x[:, i]) for i in range(n)), counts], 1)
        y = self.logits(relu(self.dense1(relu(self.dense0(y)))))
        for i in range(n + 1):
            y = y + getattr(self, f"wide{i}")(x[:, i])
        return y


class ViT(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(3, VIT_WIDTH, 8, 8), nn.Embedding(64, VIT_WIDTH)
        for i in range(VIT_LAYERS):
            setattr(self, f"block{i}_norm0", nn.LayerNorm(VIT_WIDTH, eps=1e-3))
            setattr(self, f"block{i}_attention", Attention(VIT_WIDTH, 3, causal=False))
            setattr(self, f"block{i}_norm1", nn.LayerNorm(VIT_WIDTH, eps=1e-3))
            setattr(self, f"block{i}_dense0", nn.Linear(VIT_WIDTH, 4 * VIT_WIDTH))
            setattr(self, f"block{i}_dense1", nn.Linear(4 * VIT_WIDTH, VIT_WIDTH))
        self.norm, self.logits = nn.LayerNorm(VIT_WIDTH, eps=1e-3), nn.Linear(VIT_WIDTH, 10)

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions.weight
        for i in range(VIT_LAYERS):
            x = x + getattr(self, f"block{i}_attention")(getattr(self, f"block{i}_norm0")(x))
            y = getattr(self, f"block{i}_dense0")(getattr(self, f"block{i}_norm1")(x))
            x = x + getattr(self, f"block{i}_dense1")(nn.functional.gelu(y))
        return self.logits(self.norm(x).mean(1))


class ResNet50(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        self._strides: dict[str, int] = {}  # of the blocks, by name
        self._add("conv", 3, 64, 7, 2)
        channels = 64
        for stage, (filters, blocks) in enumerate(RESNET50_STAGES):
            for block in range(blocks):
                name, stride = f"stage{stage}_block{block}", 2 if stage > 0 and block == 0 else 1
                self._strides[name] = stride
                self._add(f"{name}_conv0", channels, filters)
                self._add(f"{name}_conv1", filters, filters, 3, stride)
                self._add(f"{name}_conv2", filters, 4 * filters)
                nn.init.zeros_(getattr(self, f"{name}_conv2_norm").weight)
                if block == 0:
                    self._add(f"{name}_shortcut", channels, 4 * filters, 1, stride)
                channels = 4 * filters
        self.logits = nn.Linear(channels, RESNET50_CLASSES)

    def _add(self, name: str, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        setattr(self, name, nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False))
        setattr(self, f"{name}_norm", nn.BatchNorm2d(outputs))

    def _conv(self, x: Any, name: str) -> Any:
        return getattr(self, f"{name}_norm")(getattr(self, name)(x))

    def forward(self, x: Any) -> Any:
        """Return the logits."""
        x = relu(self._conv(x.float() / 255, "conv"))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        for name in self._strides:
            y = relu(self._conv(relu(self._conv(x, f"{name}_conv0")), f"{name}_conv1"))
            shortcut = self._conv(x, f"{name}_shortcut") if hasattr(self, f"{name}_shortcut") else x
            x = relu(self._conv(y, f"{name}_conv2") + shortcut)
        return self.logits(x.mean((2, 3)))


class GPT2(nn.Module):
    """The network of ``_models.py``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(GPT2_VOCABULARY, GPT2_WIDTH), nn.Embedding(GPT2_LENGTH, GPT2_WIDTH)
        for i in range(GPT2_LAYERS):
            setattr(self, f"block{i}_norm0", nn.LayerNorm(GPT2_WIDTH))
            setattr(self, f"block{i}_attention", Attention(GPT2_WIDTH, GPT2_HEADS, causal=True))
            setattr(self, f"block{i}_norm1", nn.LayerNorm(GPT2_WIDTH))
            setattr(self, f"block{i}_dense0", nn.Linear(GPT2_WIDTH, 4 * GPT2_WIDTH))
            setattr(self, f"block{i}_dense1", nn.Linear(4 * GPT2_WIDTH, GPT2_WIDTH))
        self.norm = nn.LayerNorm(GPT2_WIDTH)

    def forward(self, x: Any) -> Any:
        """Return the logits of each position."""
        x = self.embedding(x) + self.positions.weight
        for i in range(GPT2_LAYERS):
            x = x + getattr(self, f"block{i}_attention")(getattr(self, f"block{i}_norm0")(x))
            y = getattr(self, f"block{i}_dense0")(getattr(self, f"block{i}_norm1")(x))
            x = x + getattr(self, f"block{i}_dense1")(nn.functional.gelu(y, approximate="tanh"))
        return nn.functional.linear(self.norm(x), self.embedding.weight)


MODELS: dict[str, Callable[[], Any]] = {
    "cnn": CNN,
    "mlp": lambda: MLP(784, 512, 512),
    "tiny": lambda: MLP(16, 32),
    "resnet": ResNet,
    "transformer": Transformer,
    "lstm": LSTM,
    "mobilenet": MobileNet,
    "unet": UNet,
    "wide_deep": WideDeep,
    "vit": ViT,
    "resnet50": ResNet50,
    "gpt2": GPT2,
}


def make_model(name: str) -> Any:
    """Make a model with the initial weights of all contenders."""
    model = MODELS[name]()
    with torch.no_grad():
        for path, module in model.named_modules():
            if isinstance(module, nn.LSTM):
                _set_lstm(module, path)
            elif isinstance(getattr(module, "weight", None), torch.Tensor):
                _set(module, path.replace(".", "/"))
    return model


def _set(module: Any, layer: str) -> None:
    if module.weight.ndim > 1:
        module.weight.copy_(_initial(module, layer, tuple(module.weight.shape)))
    if getattr(module, "bias", None) is not None:
        module.bias.zero_()


def _initial(module: Any, layer: str, shape: tuple[int, ...]) -> Any:
    """Return the initial weights of one layer. `shape` is in PyTorch's layout."""
    if len(shape) == 4:
        return torch.from_numpy(draw(layer, (*shape[2:], shape[1], shape[0]))).permute(3, 2, 0, 1)
    if isinstance(module, nn.Embedding):
        return torch.from_numpy(draw(layer, shape))
    drawn = torch.from_numpy(draw(layer, shape[::-1]))
    if shape[1] == 1600:  # after a flattened image, in which channels come first here
        drawn = drawn.reshape(5, 5, 64, -1).permute(2, 0, 1, 3).reshape(1600, -1)
    return drawn.T


def _set_lstm(module: Any, layer: str) -> None:
    """Set an LSTM's weights. Its gates have the order of Keras, whose layer begins with a bias of 1 for the forget gate."""
    units = module.hidden_size
    module.weight_ih_l0.copy_(torch.from_numpy(draw(f"{layer}/lstm_cell", (module.input_size, 4 * units))).T)
    module.weight_hh_l0.copy_(torch.from_numpy(draw(f"{layer}/lstm_cell/recurrent_kernel", (units, 4 * units))).T)
    for bias in (module.bias_ih_l0, module.bias_hh_l0):
        bias.zero_()
    module.bias_ih_l0[units : 2 * units] = 1
