#!/usr/bin/env python3
"""Writes tests/data/text/tokenizer_cases.json: hard texts, and the ids that Hugging Face's
`tokenizers` gives them with the bundled tokenizer and with variants of it (other split patterns,
normalization, added tokens with white space rules, merges written the old way).

    pip install tokenizers
    python3 tools/make_tokenizer_goldens.py

The "patch" of a variant replaces fields of models/tiny/tokenizer.json; those of "model" one by one.
"""
import copy
import json
import pathlib
import random
import unicodedata

import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/data/text/tokenizer_cases.json"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, literal=False):
    return {"type": "Split", "pattern": {"String" if literal else "Regex": pattern},
            "behavior": behavior, "invert": invert}


def stages(*parts):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(parts)}}


def added(id_, content, **flags):
    token = {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    return {**token, **flags}


def variants(base):
    tokens = base["added_tokens"]
    return {
        "as it is": {},
        "no ignore_merges": {"model": {"ignore_merges": False}},
        "old merges": {"model": {"merges": [" ".join(m) for m in base["model"]["merges"]]}},
        "NFC": {"normalizer": {"type": "NFC"}},
        "NFC in a sequence": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
        "gpt2": {"pre_tokenizer": byte_level(regex=True)},
        "gpt2 with prefix": {"pre_tokenizer": byte_level(True, True)},
        "llama3": stages(split(LLAMA3), byte_level()),
        "llama3 removed inverted": stages(split(LLAMA3, "Removed", True), byte_level()),
        "o200k": stages(split(O200K), byte_level()),
        "deepseek": stages(*map(split, DEEPSEEK), byte_level()),
        "literal": stages(split("ab", literal=True), split(" ", "Removed", literal=True), byte_level()),
        "empty matches": stages(split(r"(?=\p{Lu})|(?<=\d)"), byte_level()),
        "lines": stages(split(r"(?<=[a-z])\s|\n$|^x|[^\S\n]+"), byte_level()),
        "script": stages(split(r"\p{Han}+"), split(r"\d"), byte_level(True)),
        "added tokens": {"normalizer": {"type": "NFC"}, "added_tokens": tokens + [
            added(4096, "é!", lstrip=True, normalized=True),
            added(4097, "<think> x", rstrip=True, special=True),
            added(4098, "ab!", lstrip=True, rstrip=True),
            added(4099, "世界 "),
        ]},
    }


TEXTS = [
    "", "camelCase HTTPServer XMLHttpRequest iPhone snake_case kebab-case SCREAMING_CASE",
    "/usr/local/bin/python3 C:\\Users\\me\\file.txt http://example.com/a/b?q=1&r=2#frag ../..//x",
    "日本語のテキストと漢字カナ、ひらがな。中文，标点符号！한국어 텍스트",
    "世界 世界 世界。", "👩‍👧‍👦 👍🏽 🇩🇪 ☺️ 😀😀😀", "e\u0301 n\u0303 a\u030a\u0323 \u0301x \u1100\u1161\u11a8 한",
    "Ünïcödé ß ẞ İı ǅ ﬀ Ω Å Å", "ʰʷ ªº ⅷ Ⅷ ½ ² ٣ ०१२ Ⅳ", "हिन्दी ภาษาไทย ไทยำ العربية עִברִית ქართული አማርኛ",
    "don't DON'T we'll I'm they've it'ſ x's'", "a\r\nb\r\n\r\nc\rd\n\n\ne \n f\t\n\t g", " \n", "\n ", "  \n  \n  x",
    "\t\tif (x) {\n\t\t\treturn 1;\n\t\t}\n", "    def f(self):\n        return {'a': [1, 2]}  # ok\n\n\n",
    "1 12 123 1234 12345 1,234.56 1e-10 0x1F 3.14.15", "1a2b3c a1 1a", "a  b   c    d     e", "   lead and trail   ",
    "x" * 300, "X" * 300, "ab" * 150, "!" * 200, " " * 257, "\n" * 100, "7" * 100, "é" * 100, "世" * 100, "👍" * 40, "aA" * 60,
    "\u00a0nbsp\u2003em\u3000wide\u200bzero\u2028line\u2029para\u0085nel\u180emvs", "\x00\x01\x1b\x7f\x1c\x1f", "\ufeffbom \ufffd repl \ue000 private",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n", "x<|im_end|>y <|im_end|> z", "<think></think><tool_call></tool_call>",
    "<|im_end|><|im_end|>", "<|im_end", "|im_end|>", "<<|im_end|>>", "<unk><s></s>[INST] [/INST][INST", "<SPECIAL_18><SPECIAL_1><SPECIAL_180>", "<tool_call>\n<function=f>\n",
    "é! é!  é!x", "e\u0301! \n e\u0301!", "<think> x \n y <think> x", "<think>  x", "  ab!  ab! ab!x ab ab", "世界 世界  x", "世界", "\u2003ab!\u3000é!\u00a0",
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX", "“Quotes” — dashes – and… ellipsis™ ©®", "$100 €50 £20 ¥5 100% #tag @user a+b=c x^2 ~y `z`",
    "JSON: {\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\u00e9\"}}", "#include <vector>\nint main() { return std::vector<int>{1,2,3}.size() << 2; }\n",
    "line$\nx y\nxx\n x", "aXbXc 1x2x3 Xx", "abab ab abba", "word\u0301word w\u200dw", "ﷺ\u202eRTL\u202c", "𝒜𝓁𝓅𝒽𝒶 𠜎𠜱 𐍈",
]


def random_texts(count, seed):
    pieces = ["a", "Z", "é", "ß", "the", " the", "The", "1", "23", "456", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'", ".", "/", "世", "カ", "한", "👍🏽",
              "e\u0301", "\u200d", "\u3000", "\u2028", "ǅ", "ʰ", "०", "½", "_", "—", "$", "[INST]", "<|im_end|>", "<think>", "<", "|", "ab", "X", "ab!", "é!", "世界 "]
    rng = random.Random(seed)
    for _ in range(count):
        if rng.random() < 0.3:
            yield "".join(chr(rng.choice([rng.randint(1, 0x24f), rng.randint(0x250, 0xd7ff),
                                          rng.randint(0x10000, 0x1f9ff)])) for _ in range(rng.randint(1, 16)))
        else:
            yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 24)))


def apply(patch, document):
    for key, value in patch.items():
        if key == "model":
            document["model"].update(value)
        else:
            document[key] = value


def main():
    base = json.loads((ROOT / "models/tiny/tokenizer.json").read_text())
    texts = TEXTS + list(random_texts(120, seed=7))
    # Unassigned code points depend on the Unicode version of whoever asks.
    texts = [t for t in texts if all(unicodedata.category(c) != "Cn" for c in t)]
    out = []
    for name, patch in variants(base).items():
        document = copy.deepcopy(base)
        apply(patch, document)
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        decoded = [tokenizer.decode(i, skip_special_tokens=True) for i in ids] if not patch else None
        if name == "old merges":
            patch = {"merges_as_strings": True}  # 50 kB that the test can make itself
        out.append({"name": name, "patch": patch, "ids": ids})
        if decoded:
            out[-1]["decoded_without_special"] = decoded
    OUT.write_text(json.dumps({"texts": texts, "variants": out}, ensure_ascii=True,
                              separators=(",", ":")) + "\n")
    print(f"{OUT}: {len(texts)} texts, {len(out)} variants, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
