"""How cards turn FP8 into float16: assembly, by codec, for four codes in $2."""


def _assembly(first: str, second: str, codes: str) -> dict[str, str]:
    """first, second: what `prmt` picks, to have the codes of $0 and of $1 in the high bytes.

    codes: makes a register `codes` of $2, whose halves the hardware converts to $0 and $1.
    """
    spread = f"prmt.b32 {{a}}, $2, 0, {first}; prmt.b32 {{b}}, $2, 0, {second};"
    return {
        "e4m3": "{ .reg .b16 low, high; .reg .b32 codes; " + codes + " mov.b32 {low, high}, codes;"
        " cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }",
        # The seven low bits of e4m3, read as float16, are the value divided by 2**8.
        "e4m3_bits": "{ .reg .b32 a, b, c, d, scale; mov.b32 scale, 0x5c005c00; "
        + spread.format(a="a", b="b")
        + " shr.u32 c, a, 1; shr.u32 d, b, 1; and.b32 c, c, 0x3f803f80; and.b32 d, d, 0x3f803f80;"
        " lop3.b32 a, a, 0x80008000, c, 0xea; lop3.b32 b, b, 0x80008000, d, 0xea;"
        " mul.f16x2 $0, a, scale; mul.f16x2 $1, b, scale; }",
        # e5m2 is the high byte of float16.
        "e5m2": spread.format(a="$0", b="$1"),
    }


IN_ORDER = _assembly("0x1404", "0x3424", "mov.b32 codes, $2;")  # codes 0 and 1, codes 2 and 3
EVEN_ODD = _assembly("0x2404", "0x3414", "prmt.b32 codes, $2, 0, 0x3120;")  # 0 and 2, 1 and 3

# For a word of four codes in $4: its float16 values leave one by one, which costs no instruction.
WORDS = {
    "e4m3": "{ .reg .b16 low, high; .reg .b32 front, back; mov.b32 {low, high}, $4;"
    " cvt.rn.f16x2.e4m3x2 front, low; cvt.rn.f16x2.e4m3x2 back, high;"
    " mov.b32 {$0, $1}, front; mov.b32 {$2, $3}, back; }",
    "e5m2": "{ .reg .b32 front, back; prmt.b32 front, $4, 0, 0x1404; prmt.b32 back, $4, 0, 0x3424;"
    " mov.b32 {$0, $1}, front; mov.b32 {$2, $3}, back; }",
}
