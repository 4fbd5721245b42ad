//! `stmatrix`: every element at its place, and the checks of its accesses.

use crate::common::{finding, launch};
use warpsmith_emulator::{Config, FindingKind, LaunchError, Machine, Report};

/// Stores `count` matrices, whose lane l of register r holds the halves 64r + 2l and 64r + 2l + 1, to the rows of shared
/// memory from the last one on, and copies it to global memory. `between` stands before the store.
fn run(count: usize, transpose: &str, between: &str) -> (Result<Report, LaunchError>, Vec<u16>) {
    let registers = (0..count).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ");
    // By halves, each of which must have been written.
    let copy: String = (0..16)
        .step_by(2)
        .map(|at| format!("@%p ld.shared.u16 %r0, [%s+{at}];\n@%p st.global.u16 [%out+{at}], %r0;\n"))
        .collect();
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry test(.param .u64 p_out)\n{{\n\
         .reg .b32 %t, %s, %x, %r<4>; .reg .b64 %out; .reg .pred %p;\n.shared .align 16 .b8 rows[512];\n\
         ld.param.u64 %out, [p_out];\nmov.u32 %t, %tid.x;\nmad.wide.u32 %out, %t, 16, %out;\nmov.u32 %s, rows;\n\
         mad.lo.u32 %x, %t, 0x00020002, 0x00010000;\nmov.b32 %r0, %x;\nadd.u32 %r1, %x, 0x00400040;\n\
         add.u32 %r2, %x, 0x00800080;\nadd.u32 %r3, %x, 0x00c000c0;\nsub.u32 %x, 31, %t;\n\
         mad.lo.u32 %s, %x, 16, %s;\n{between}\n\
         stmatrix.sync.aligned.m8n8.x{count}{transpose}.shared.b16 [%s], {{{registers}}};\nbar.warp.sync 0xffffffff;\n\
         mov.u32 %s, rows;\nmad.lo.u32 %s, %t, 16, %s;\nsetp.ge.u32 %p, %t, {};\n\
         {copy}ret;\n}}\n",
        32 - 8 * count
    );
    let module = crate::common::parse("test.ptx", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let machine = Machine::new(Config { compute_capability: (9, 0), ..Config::default() });
    let out = machine.allocate(512).unwrap();
    machine.fill(out, 0, 512).unwrap();
    let result = launch(&machine, &module, 1, 32, 0, &[out]);
    let mut bytes = vec![0; 512];
    machine.read(out, &mut bytes).unwrap();
    (result, bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect())
}

#[test]
fn every_half_goes_to_its_row_and_column() {
    for count in [1, 2, 4] {
        for transpose in ["", ".trans"] {
            let (result, halves) = run(count, transpose, "");
            result.unwrap_or_else(|error| panic!("{error}"));
            for matrix in 0..count {
                for row in 0..8 {
                    for column in 0..8 {
                        let (line, half) = if transpose.is_empty() { (row, column) } else { (column, row) };
                        // The lane that holds two neighbours of a line, and which of them.
                        let (lane, half) = (4 * line + half / 2, half % 2);
                        let at = (31 - 8 * matrix - row) * 8 + column;
                        let expected = 64 * matrix + 2 * lane + half;
                        assert_eq!(
                            usize::from(halves[at]),
                            expected,
                            "x{count}{transpose}, matrix {matrix}, ({row}, {column})"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn wrong_stores_are_found() {
    assert_eq!(finding(run(4, "", "add.u32 %s, %s, 8;").0).kind, FindingKind::Misaligned);
    assert_eq!(finding(run(4, "", "add.u32 %s, %s, 512;").0).kind, FindingKind::OutOfBounds);
    let part = "setp.eq.u32 %p, %t, 3;\n@%p ret;";
    assert_eq!(finding(run(4, "", part).0).kind, FindingKind::Divergence);
    // Of one matrix, the addresses of the upper lanes do not count.
    run(1, "", "setp.gt.u32 %p, %t, 7;\n@%p mov.u32 %s, 5;").0.unwrap_or_else(|error| panic!("{error}"));
    let unwritten = ".reg .b32 %u; setp.eq.u32 %p, %t, 5;\n@%p mov.b32 %r1, %u;";
    for transpose in ["", ".trans"] {
        assert_eq!(finding(run(2, transpose, unwritten).0).kind, FindingKind::Uninitialised);
        run(1, transpose, unwritten).0.unwrap_or_else(|error| panic!("{error}"));
    }
}
