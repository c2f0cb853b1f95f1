# SPDX-License-Identifier: Apache-2.0
"""The strings that scripts/make-golden-tokenizer encodes: 2,300 of them, always the same.

Sentences in many writing systems, code, and seeded mixtures of everything a tokenizer can trip
over: runs of whitespace, digits of many scripts, emoji sequences, combining marks, control
characters, unassigned code points, the text of special tokens, bytes that are not UTF-8.
"""
import random

SENTENCES = """
The quick brown fox jumps over the lazy dog, and it didn't even notice.
I'm sure we'll've done what you'd asked; they're "fine", aren't they?
SHOUTING: DON'T! WE'LL SEE. IT'S 5 O'CLOCK & I'VE 3 THINGS
El veloz murciélago hindú comía feliz cardillo y kiwi. ¿Qué tal?
Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis.
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg – ß, ẞ.
Pchnąć w tę łódź jeża lub ośm skrzyń fig.
Příliš žluťoučký kůň úpěl ďábelské ódy.
Árvíztűrő tükörfúrógép, flygande bäckasiner söka hwila på mjuka tuvor.
Pijamalı hasta yağız şoföre çabucak güvendi. İstanbul, ıssız.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Жебракують філософи при ґанку церкви в Гадячі.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τι κάνεις;
Բել դղյակի ձախ ժամն օֆ ազգությանը ցպահանջ չճշտած
דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता है।
আমি বাংলায় গান গাই, কেমন আছো?
யாதும் ஊரே யாவரும் கேளிர்
తెలుగు లిపి చాలా అందంగా ఉంటుంది
สวัสดีชาวโลก วันนี้อากาศดีมาก
ສະບາຍດີຊາວໂລກ
မင်္ဂလာပါ ကမ္ဘာလောက
ជំរាបសួរ ពិភពលោក
いろはにほへと ちりぬるを。カタカナもありますか？
私は昨日、東京タワーに行きました（とても楽しかった）。
我能吞下玻璃而不伤身体。今天天气怎么样？
我能吞下玻璃而不傷身體，２０２４年１２月３１日
다람쥐 헌 쳇바퀴에 타고파. 안녕하세요 세계!
ქართული ენა მშვენიერია
አማርኛ ቋንቋ ነው
ᓄᓇᕗᑦ ᐃᓄᒃᑎᑐᑦ
Tiếng Việt có nhiều dấu thanh, đúng không?
Ég get etið gler án þess að meiða mig. Þórður
🙂 emoji 👩‍👩‍👧‍👦 family, flags 🇩🇪🇫🇷, skin 👍🏽, heart ❤️, keycap 1️⃣
∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β, ½ ≠ ⅓, x² + y³ ≤ ∑ᵢ aᵢ
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 ℵ₀ ﬁne ﬂow Ⅷ ⑳ ㍿
""".strip().split("\n")

CODE = r'''
def f(x: int) -> str:
    return f"{x!r:>10}"  # comment
#include <stdio.h>
int main(void) { printf("%d\n", 0xFF & ~1u); return 0; }
for (let i = 0; i < arr.length; ++i) { sum += arr[i] ?? 0; }
SELECT a.id, COUNT(*) FROM t AS a WHERE b <> 'it''s' GROUP BY 1;
{"key": [1, 2.50, -3e-10, null, true], "nested": {"a\\b": "\u00e9"}}
<div class="x y" id='z'>&nbsp;&lt;text&gt;</div>
https://example.org/path/to?query=a%20b&c=d#frag user.name+tag@example.co.uk
$ grep -rn "main" . | awk -F: '{print $1}' | sort -u >/dev/null 2>&1
	if err != nil {
		return fmt.Errorf("wrap: %w", err)
	}
a=b==c!=d<=e>=f&&g||h<<i>>j->k::l...m;
std::vector<std::pair<int, std::string>> v{{1,"a"},{2,"b"}};
2024-12-31T23:59:59.999Z 192.168.0.1 1,234,567.89 $9.99 50% #1 @you C:\dir\file.txt
'''

CODE_LINES = CODE.strip("\n").split("\n")

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>",
            "<tool_call>", "</tool_call>", "<s>", "</s>", "<|im_start|", "|im_end|>", "<|im_",
            "<|im_start|><|im_end|>", "<|im_<|im_end|>end|>", "<filename>", "<empty_output>",
            "<jupyter_code>", "<|IM_END|>"]

SPACES = list(" \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u180e\u2002\u2009\u200b\u2028\u2029\u202f"
              "\u205f\u2060\u3000\ufeff") + ["  ", "   ", "\r\n", "\n\n", "\t\t", " \n", "\n "]

ALPHABETS = [
    list("abcdefghij XYZ'\".,;:!?-_/\\()[]{}<>|0123456789\n\t"),
    [chr(c) for c in range(0xC0, 0x250)] + [" "] * 20,
    [chr(c) for c in range(0x300, 0x370)] + list("aeiouAEIOU ") * 12,
    [chr(c) for c in range(0x370, 0x530)] + [" "] * 30,
    [chr(c) for c in range(0x590, 0x780)] + [" "] * 30,
    [chr(c) for c in range(0x900, 0xE00)] + [" "] * 60,
    [chr(c) for c in range(0xE00, 0x1100)] + [" "] * 30,
    [chr(c) for c in range(0x1100, 0x1200)] + [chr(c) for c in range(0xAC00, 0xAC60)] + [" "] * 9,
    [chr(c) for c in range(0x3040, 0x3100)] + [chr(c) for c in range(0x4E00, 0x4F00)] + ["。", " "],
    [chr(c) for c in range(0x2000, 0x2070)] + [chr(c) for c in range(0x2150, 0x2190)] + ["a", "1"],
    list("👩👨👧🏽❤🇩🇪🙂⌚") + ["\u200d", "\ufe0f", "\u20e3", "1", " ", "x"],
    list("0123456789") * 3 + list("٠١٢३४௫六０１９¼½²₃Ⅳ④൫𝟘𝟗") + [" ", ".", "a"],
    ["'", "s", "S", "ſ", "t", "T", "re", "RE", "ve", "m", "ll", "lL", "d", "D", " ", "’", "x"],
    SPACES + ["a", "1", "."],
    SPECIALS + ["a", " ", "\n", "é"],
    [chr(c) for c in range(0x20)] + ["\x7f", "\x80", "\x9f", "a", " "],
]


def characters(r, n):
    """n characters from anywhere in Unicode, assigned or not."""
    pools = [(0x20, 0x7F), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000),
             (0x10000, 0x20000), (0x20000, 0x32400), (0xE0000, 0xE0200), (0xF0000, 0x110000)]
    return "".join(chr(r.randrange(*r.choice(pools))) for _ in range(n))


def raw_bytes(r, n):
    """n pieces of broken UTF-8 among whole characters, as bytes."""
    whole = ["a", "é", "€", "🙂", " ", "\n", "1"]
    broken = [b"\x80", b"\xbf", b"\xc0\xaf", b"\xc3", b"\xe2\x82", b"\xe0\x80\x80", b"\xed\xa0\x80",
              b"\xed\xbf\xbf", b"\xf0\x9f\x99", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5",
              b"\xfe", b"\xff", b"\xc1\x81", b"\xf0\x9f", b"\xf8\x88\x80\x80\x80"]
    pick = lambda: r.choice(whole).encode() if r.random() < 0.5 else r.choice(broken)
    return b"".join(pick() for _ in range(n))


# What normalization has to move, join or take apart: marks of many classes, letters that take them,
# what decomposes into marks or grows, syllables and their parts.
MARKS = [chr(c) for c in (0x300, 0x301, 0x308, 0x323, 0x327, 0x328, 0x334, 0x338, 0x340, 0x344,
                          0x345, 0x35C, 0x360, 0x5B0, 0x5BC, 0x653, 0x93C, 0x94D, 0xF71, 0xF72,
                          0xF73, 0xF74, 0xF81, 0x302A, 0x3099, 0x20D0, 0x1D165, 0x1D16E)]
BASES = list("aeoAE x1") + [chr(c) for c in (0xE9, 0x1EAD, 0x212B, 0x2126, 0x627, 0x915, 0x958, 0x9C7,
                                             0x9BE, 0xB47, 0xB56, 0x1100, 0x1161, 0x11A8, 0xAC00,
                                             0xAC01, 0x304B, 0x1D15E, 0x2F800, 0xFB1D, 0x110BA)]


def marked(r, n):
    """n characters, most of them marks."""
    return "".join(r.choice(MARKS if r.random() < 0.7 else BASES) for _ in range(n))


def adversarial():
    """Byte strings that ask for more work than they look like; no vocabulary is trained on them."""
    r = random.Random(20261122)
    out = [marked(r, r.randint(2, 24)).encode() for _ in range(60)]
    out += [marked(r, 300).encode(), ("a" + "".join(sorted(MARKS)) * 8).encode(),
            ("a" + "\u0301" * 200 + "\u0323" * 200).encode(), ("\u0344" * 150).encode()]
    for unit in ("\u1100\u1161\u11a8", "\u1100", "\u1161", "\uac00\u11a8", "\u0f73", "👩\u200d",
                 "\u200d\ufe0f", "🇩", " \n", "\n ", "a ", "a1", "A", "aA", "!a", "'s", " !", "\t \r\n",
                 "é", "漢", "\u3000", "\u00a0", "1", "½", "<|im_", "<|", "ا\u0653"):
        out.append((unit * 60).encode())
    for unit in (" ", "\n", "a", "A", "=", "7", "\u0301", "ก"):
        out += [(unit * 700).encode(), (unit * 300 + "x").encode()]
    return out


def corpus():
    """The list of byte strings."""
    r = random.Random(20240613)
    out = [b""] + [s.encode() for s in SENTENCES + CODE_LINES + SPECIALS + SPACES]
    out.append(CODE.encode())
    out += [bytes([b]) for b in range(256)]
    out += [chr(c).encode() * 2 for c in (0x1C89, 0x2EBF0, 0x31350, 0x11F50, 0x1E030, 0x0378, 0xE000,
                                          0x10FFFF, 0xFFFE, 0x11DE0, 0x16FF4, 0x0897, 0x09FE)]
    for n in range(1, 25):
        out += [b" " * n + b"x", b"x" + b"\n" * n, b"7" * n, b"\t" * n + b"y", b"=" * n, b"A" * n * 5]
    words = [w for s in SENTENCES + CODE_LINES for w in s.split(" ")]
    for i in range(320):
        glue = r.choice([" ", " ", "", "  ", "\n", "\t", "\r\n", "-", "/"])
        out.append(glue.join(r.choice(words) for _ in range(r.randint(2, 9))).encode())
    for alphabet in ALPHABETS:
        for i in range(40):
            out.append("".join(r.choice(alphabet) for _ in range(r.randint(1, 20))).encode())
    for i in range(260):
        out.append("".join(r.choice(r.choice(ALPHABETS)) for _ in range(r.randint(2, 24))).encode())
    out += [characters(r, r.randint(1, 8)).encode() for _ in range(240)]
    out += [raw_bytes(r, r.randint(1, 10)) for _ in range(240)]
    for i in range(40):
        out.append((r.choice(SPECIALS) + r.choice(SPACES) + r.choice(SENTENCES) +
                    r.choice(SPACES) + r.choice(SPECIALS)).encode())
    out.append(" ".join(SENTENCES).encode())
    return out
