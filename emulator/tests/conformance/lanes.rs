//! Operations across the lanes of a warp, and special registers.

use crate::harness::check;

#[test]
fn lanes_exchange_values() {
    // One warp: inputs carry the lane in the low bits.
    let i: Vec<[u64; 4]> = (0..32).map(|lane| [100 + lane, lane * 7 % 32, lane % 3, lane]).collect();
    let value = |lane: u64| 100 + lane;
    check("shfl.sync.bfly.b32 %d32, %a32, 5, 31, -1;", "32", &i, |[.., lane]| value(lane ^ 5));
    check("shfl.sync.idx.b32 %d32, %a32, %b32, 31, -1;", "32", &i, |[_, source, ..]| value(source));
    check("shfl.sync.up.b32 %d32|%dp, %a32, 3, 0, -1;", "32", &i, |[.., lane]| {
        value(if lane >= 3 { lane - 3 } else { lane })
    });
    check("shfl.sync.up.b32 %d32|%dp, %a32, 3, 0, -1;", "p", &i, |[.., lane]| u64::from(lane >= 3));
    check("shfl.sync.down.b32 %d32|%dp, %a32, 4, 31, -1;", "p", &i, |[.., lane]| u64::from(lane < 28));
    // Segments of 8 lanes.
    check("shfl.sync.down.b32 %d32, %a32, 4, 0x181f, -1;", "32", &i, |[.., lane]| {
        value(if lane % 8 < 4 { lane + 4 } else { lane })
    });
    check("vote.sync.ballot.b32 %d32, %cp, -1;", "32", &i, |_| {
        (0..32).filter(|l| l % 3 != 0).fold(0, |m, l| m | 1 << l)
    });
    check("vote.sync.any.pred %dp, %cp, -1;", "p", &i, |_| 1);
    check("vote.sync.all.pred %dp, %cp, -1;", "p", &i, |_| 0);
    check("vote.sync.uni.pred %dp, !%cp, -1;", "p", &i, |_| 0);
    check("match.any.sync.b32 %d32, %c32, -1;", "32", &i, |[_, _, c, _]| {
        (0..32).filter(|l| l % 3 == c).fold(0, |m, l| m | 1 << l)
    });
    check("match.all.sync.b32 %d32|%dp, %c32, -1;", "p", &i, |_| 0);
    check("redux.sync.add.u32 %d32, %a32, -1;", "32", &i, |_| (0..32).map(value).sum());
    check("redux.sync.max.s32 %d32, %a32, -1;", "32", &i, |_| 131);
    check("activemask.b32 %d32;", "32", &i, |_| 0xffff_ffff);
    check("mov.u32 %d32, %laneid;", "32", &i, |[.., lane]| lane);
    check("mov.u32 %d32, %lanemask_lt;", "32", &i, |[.., lane]| (1 << lane) - 1);
    check("bar.red.popc.u32 %d32, 0, %cp;", "32", &i, |_| 21);
    check("bar.red.or.pred %dp, 0, 32, %cp;", "p", &i, |_| 1);
}
