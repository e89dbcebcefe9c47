"""Loops and the spills in them, read from listings written by hand."""

from __future__ import annotations

from attnloom.compile.sass import count_spills, instructions, loops

LISTING = """
        /*0000*/                   STL [R1], R0 ;                     /* 0x0 */
                                                                      /* 0x0 */
        /*0010*/                   LDL R0, [R1] ;                     /* 0x0 */
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4] ;
        /*0030*/              @!P0 BRA 0x90 ;
        /*0040*/                   STL.64 [R1+0x8], R2 ;
        /*0050*/               @P1 BRA 0x20 ;
        /*0060*/                   LDL.LU R5, [R1+0x4] ;
        /*0070*/              @!P2 BRA 0x10 ;
        /*0080*/                   EXIT ;
        /*0090*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R4 ;
        /*00a0*/              @!P0 BRA 0x90 ;
        /*00b0*/                   BRA 0x40 ;
        /*00c0*/                   BRA 0xc0 ;
"""


def test_instructions_are_read():
    code = list(instructions(LISTING))
    assert len(code) == 13
    assert [one.opcode for one in code[:4]] == ["STL", "LDL", "HGMMA", "BRA"]
    assert (code[3].guarded, code[3].target) == (True, 0x90)
    assert (code[11].guarded, code[11].target) == (False, 0x40)


def test_a_loop_has_what_lies_out_of_line_too():
    """The wait at 0x90 belongs to the inner loop, though its code lies behind the exit."""
    found = {min(loop): loop for loop in loops(list(instructions(LISTING)))}
    assert sorted(found) == [0x10, 0x20, 0x90, 0xC0]
    assert found[0x20] == {0x20, 0x30, 0x40, 0x50, 0x90, 0xA0, 0xB0}
    assert found[0x10] == found[0x20] | {0x10, 0x60, 0x70}
    assert found[0x90] == {0x90, 0xA0}


def test_spills_count_in_the_innermost_loop_around_a_product():
    """0x40 lies in it; 0x0 in no loop, 0x10 and 0x60 in the outer one."""
    spills = count_spills(list(instructions(LISTING)))
    assert (spills.total, spills.in_loops) == (4, 1)


def test_what_only_a_table_of_jumps_reaches_has_loops_of_its_own():
    """Partitions of a warp-specialised kernel start where an indirect jump leads."""
    listing = """
        /*0000*/                   BRX R2 -0x10 ;
        /*0010*/                   NOP ;
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4] ;
        /*0030*/                   STL [R1], R2 ;
        /*0040*/               @P1 BRA 0x20 ;
        /*0050*/                   EXIT ;
"""
    code = list(instructions(listing))
    assert loops(code) == [{0x20, 0x30, 0x40}]
    assert count_spills(code).in_loops == 1
