use super::super::order::{Clock, Memory, Order};
use super::*;

/// A block's shadow and the clocks of its warps.
struct Pair {
    shadow: Shadow,
    order: Order,
}

impl Pair {
    fn new(bytes: u32, warps: u32) -> Self {
        Self { shadow: Shadow::new(bytes, 0, warps, true), order: Order::new(warps, true) }
    }

    fn access(
        &mut self,
        granule: u32,
        bytes: u16,
        actor: u32,
        access: Access,
        at: u32,
    ) -> Result<(), Conflict> {
        self.shadow.access(&self.order, granule, bytes, Who { actor, at }, access)
    }

    fn access_whole(
        &mut self,
        region: u32,
        granules: u64,
        actor: u32,
        access: Access,
        at: u32,
    ) -> Result<(), (u32, Conflict)> {
        self.shadow.access_whole(&self.order, region, granules, Who { actor, at }, access)
    }

    fn complete(&mut self, granule: u32, bytes: u16) {
        let now = self.order.now();
        self.shadow.complete(granule, bytes, now);
    }

    fn barrier(&mut self, arrivals: &[(u32, Option<Clock>)], everyone: bool) {
        self.order.barrier(arrivals);
        if everyone {
            self.shadow.settle(self.order.now());
        }
    }
}

fn conflict(actor: order::Actor, at: u32, access: Access) -> Conflict {
    Conflict { actor, at, access, unfenced: false }
}

fn all(pair: &mut Pair, warps: u32) {
    let arrivals: Vec<_> = (0..warps).map(|w| (w, None)).collect();
    pair.barrier(&arrivals, true);
}

#[test]
fn a_barrier_orders_and_nothing_else_does() {
    let mut s = Pair::new(64, 2);
    assert!(s.access(0, 0xffff, 0, Access::Write, 1).is_ok());
    assert!(s.access(0, 0x000f, 0, Access::Read, 2).is_ok());
    let race = s.access(0, 0x000f, 1, Access::Read, 3).unwrap_err();
    assert_eq!(race, conflict(0, 1, Access::Write));
    all(&mut s, 2);
    assert!(s.access(0, 0x000f, 1, Access::Read, 4).is_ok());
    let race = s.access(0, 0xffff, 0, Access::Write, 5).unwrap_err();
    assert_eq!(race, conflict(1, 4, Access::Read));
    all(&mut s, 2);
    assert!(s.access(0, 0xffff, 0, Access::Write, 6).is_ok());
}

#[test]
fn neighbours_in_a_granule_do_not_race() {
    let mut s = Pair::new(64, 4);
    for warp in 0..4 {
        assert!(s.access(1, 0xf << (4 * warp), warp, Access::Read, 0).is_ok());
        assert!(s.access(1, 0xf << (4 * warp), warp, Access::Write, 1).is_ok());
    }
    assert!(s.access(1, 0x1, 1, Access::Read, 2).is_err());
    all(&mut s, 4);
    assert!(s.access(1, 0xffff, 1, Access::Read, 3).is_ok());
}

#[test]
fn a_barrier_of_some_orders_only_them() {
    let mut s = Pair::new(16, 3);
    s.access(0, 1, 0, Access::Write, 0).unwrap();
    s.barrier(&[(0, None), (1, None)], false);
    assert!(s.access(0, 1, 1, Access::Read, 1).is_ok());
    assert!(s.access(0, 1, 2, Access::Read, 2).is_err());
    // Order is passed on: 1 and 2 meet, and 2 then knows what 0 did before.
    s.barrier(&[(1, None), (2, None)], false);
    assert!(s.access(0, 1, 2, Access::Read, 3).is_ok());
}

#[test]
fn an_arrival_orders_what_was_before_it_only() {
    let mut s = Pair::new(32, 2);
    s.access(0, 1, 0, Access::Write, 0).unwrap();
    let clock = s.order.release(0);
    s.access(1, 1, 0, Access::Write, 1).unwrap();
    s.barrier(&[(0, Some(clock)), (1, None)], false);
    assert!(s.access(0, 1, 1, Access::Read, 2).is_ok());
    assert!(s.access(1, 1, 1, Access::Read, 3).is_err());
}

#[test]
fn a_pending_copy_must_not_be_touched_by_anyone() {
    let mut s = Pair::new(16, 2);
    s.access(0, 0xffff, 0, Access::Asynchronous, 0).unwrap();
    assert_eq!(s.access(0, 1, 0, Access::Read, 1).unwrap_err().access, Access::Asynchronous);
    s.complete(0, 0xffff);
    assert!(s.access(0, 1, 0, Access::Read, 2).is_ok());
    assert!(s.access(0, 1, 1, Access::Read, 3).is_err(), "a wait orders the own warp only");
    all(&mut s, 2);
    assert!(s.access(0, 1, 1, Access::Read, 4).is_ok());
}

#[test]
fn whole_granules_are_checked_like_their_bytes() {
    let mut s = Pair::new(4096, 3);
    let write = |s: &mut Pair, warp| s.access_whole(1, 0b110, warp, Access::Write, 7);
    let read = |s: &mut Pair, warp, granules| s.access_whole(1, granules, warp, Access::Read, 8);
    write(&mut s, 0).unwrap();
    assert_eq!(read(&mut s, 1, 0b010).unwrap_err(), (65, conflict(0, 7, Access::Write)));
    assert!(read(&mut s, 1, 0b001).is_ok() && read(&mut s, 0, 0b100).is_ok());
    all(&mut s, 3);
    assert!(read(&mut s, 1, 0b010).is_ok() && read(&mut s, 2, 0b100).is_ok());
    assert_eq!(write(&mut s, 0).unwrap_err(), (65, conflict(1, 8, Access::Read)));
    assert!(s.access_whole(1, 0b001, 0, Access::Write, 9).is_ok());
    // A single byte conflicts with the read of its granule.
    assert!(s.access(66, 1, 0, Access::Write, 10).is_err());
    assert!(s.access(66, 1, 2, Access::Write, 11).is_ok());
    // Readers that a barrier of some has ordered do not count.
    s.barrier(&[(0, None), (1, None)], false);
    assert!(s.access_whole(1, 0b010, 0, Access::Write, 12).is_ok());
}

#[test]
fn copies_stay_pending_across_barriers() {
    let mut s = Pair::new(2048, 2);
    s.access_whole(0, 1, 0, Access::Asynchronous, 0).unwrap();
    all(&mut s, 2);
    assert_eq!(s.access_whole(0, 1, 1, Access::Read, 1).unwrap_err().1.access, Access::Asynchronous);
    s.complete(0, u16::MAX);
    assert!(s.access_whole(0, 1, 0, Access::Read, 2).is_ok());
    assert!(s.access_whole(0, 1, 1, Access::Read, 3).is_err());
    all(&mut s, 2);
    assert!(s.access_whole(0, 1, 1, Access::Read, 4).is_ok());
}

#[test]
fn atomics_do_not_race_with_each_other() {
    let mut s = Pair::new(16, 2);
    s.access(0, 0xf, 0, Access::Atomic, 0).unwrap();
    assert!(s.access(0, 0xf, 1, Access::Atomic, 1).is_ok());
    assert!(s.access(0, 0xf, 0, Access::Read, 2).is_err());
}

#[test]
fn agents_need_a_proxy_fence_behind_ordinary_writes() {
    let mut s = Pair::new(64, 2);
    let reader = Who { actor: 1, at: 5 };
    s.access(0, 0xffff, 0, Access::Write, 1).unwrap();
    all(&mut s, 2);
    assert!(s.shadow.check_agent(&s.order, &[(0, 16)], reader).unwrap_err().1.unfenced);
    assert!(s.shadow.start_copy(&s.order, &[(0, 8)], reader, 9, true).unwrap_err().1.unfenced);
    // A fence helps whoever executes it, as long as it is between the two.
    s.order.fence(1, &Memory::ALL);
    assert!(s.shadow.check_agent(&s.order, &[(0, 16)], reader).is_ok());
    s.access(1, 0xffff, 0, Access::Write, 1).unwrap();
    s.order.fence(0, &Memory::ALL);
    all(&mut s, 2);
    assert!(s.shadow.check_agent(&s.order, &[(16, 16)], reader).is_ok());
}

#[test]
fn a_copy_is_known_to_those_that_waited_for_it() {
    let mut s = Pair::new(64, 2);
    let channel = s.order.channel();
    s.shadow.start_copy(&s.order, &[(0, 16)], Who { actor: 0, at: 3 }, channel, true).unwrap();
    assert_eq!(s.access(0, 1, 0, Access::Read, 4).unwrap_err().access, Access::Asynchronous);
    let stamp = s.order.now();
    s.shadow.arrive(0, 0xffff, stamp);
    assert_eq!(s.access(0, 1, 0, Access::Read, 4).unwrap_err().access, Access::Write);
    all(&mut s, 2);
    assert!(s.access(0, 1, 0, Access::Read, 4).is_err(), "a barrier does not wait for copies");
    let mut clock = Clock::default();
    clock.learn(channel, stamp + 1);
    s.order.acquire(1, &clock);
    assert!(s.access(0, 1, 1, Access::Read, 5).is_ok());
    assert!(s.access(0, 1, 0, Access::Read, 6).is_err());
}

#[test]
fn what_an_agent_reads_is_locked() {
    let mut s = Pair::new(4096, 2);
    let lock = s.shadow.lock(&[(8, 24), (2048, 16)], Who { actor: 0, at: 7 }, "a copy");
    assert!(s.access(0, 0x00ff, 1, Access::Write, 1).is_ok());
    assert_eq!(s.access(0, 0x0100, 1, Access::Write, 1).unwrap_err(), conflict(0, 7, Access::Locked));
    assert_eq!(s.access_whole(2, 1, 0, Access::Write, 1).unwrap_err().1.access, Access::Locked);
    assert!(s.access(0, 0xff00, 1, Access::Read, 1).is_ok());
    s.shadow.unlock(&s.order, lock);
    // Then it is a read of the warp that it was for.
    assert_eq!(s.access_whole(2, 1, 1, Access::Write, 1).unwrap_err().1, conflict(0, 7, Access::Read));
    assert!(s.access_whole(2, 1, 0, Access::Write, 1).is_ok());
}

#[test]
fn warps_of_other_blocks_are_ordered_by_their_clocks_only() {
    let (mut shadow, mut order) = (Shadow::new(64, 0, 2, true), Order::new(4, true));
    let (own, other) = (Who { actor: 0, at: 1 }, Who { actor: 3, at: 2 });
    shadow.access(&order, 0, 0xffff, own, Access::Write).unwrap();
    order.barrier(&[(0, None), (1, None)]);
    shadow.settle(order.now());
    assert_eq!(shadow.access(&order, 0, 1, other, Access::Read).unwrap_err(), conflict(0, 1, Access::Write));
    order.barrier(&[(0, None), (3, None)]);
    assert!(shadow.access(&order, 0, 1, other, Access::Read).is_ok());
    assert_eq!(
        shadow.access_whole(&order, 0, 1, own, Access::Write).unwrap_err(),
        (0, conflict(3, 2, Access::Read))
    );
    shadow.access(&order, 1, 0xff, other, Access::Write).unwrap();
    order.barrier(&[(0, None), (1, None)]);
    shadow.settle(order.now());
    assert_eq!(shadow.access(&order, 1, 1, own, Access::Read).unwrap_err(), conflict(3, 2, Access::Write));
}

#[test]
fn an_agent_may_overtake_reads_that_no_proxy_fence_is_behind() {
    let mut s = Pair::new(4096, 3);
    let overtaken = |s: &mut Pair, actor, range| {
        let found = s.shadow.overtakes(&s.order, range, Who { actor, at: 9 });
        found.map(|(granule, read)| (granule, read.actor, read.at, read.ordered))
    };
    let whole = (1024, 1024);
    // Warps 0 and 1 read; the first fences, and both tell warp 2.
    s.access_whole(1, 0b110, 0, Access::Read, 1).unwrap();
    s.order.fence(0, &Memory::ALL);
    s.access(66, 0x00f0, 1, Access::Read, 2).unwrap();
    assert_eq!(overtaken(&mut s, 0, (0, 1024)), None, "what others read elsewhere");
    all(&mut s, 3);
    assert_eq!(overtaken(&mut s, 2, (1024, 32)), None, "the fenced read alone");
    assert_eq!(overtaken(&mut s, 2, whole), Some((66, 1, 2, true)));
    assert_eq!(overtaken(&mut s, 2, whole), None, "a read is overtaken once");
    // A fence covers what its warp has read before it, not what it reads behind it; and what it knows of others.
    s.access_whole(1, 0b010, 0, Access::Read, 3).unwrap();
    s.access_whole(1, 0b100, 1, Access::Read, 4).unwrap();
    s.order.fence(1, &Memory::ALL);
    all(&mut s, 3);
    assert_eq!(overtaken(&mut s, 2, whole), Some((65, 0, 3, true)));
    s.access_whole(1, 0b010, 0, Access::Read, 5).unwrap();
    all(&mut s, 3);
    s.order.fence(1, &Memory::ALL);
    assert_eq!(overtaken(&mut s, 1, whole), None);
    // The own reads of the warp that starts the copy count; those that nothing orders do in any case.
    s.access_whole(1, 0b010, 2, Access::Read, 6).unwrap();
    assert_eq!(overtaken(&mut s, 2, whole), Some((65, 2, 6, true)));
    s.access_whole(1, 0b010, 2, Access::Read, 7).unwrap();
    s.order.fence(2, &Memory::ALL);
    assert_eq!(overtaken(&mut s, 1, whole), Some((65, 2, 7, false)));
    // Regions are told apart, and a range may begin and end within them.
    s.access_whole(2, 1 << 63, 0, Access::Read, 8).unwrap();
    assert_eq!(overtaken(&mut s, 0, (2048, 1008)), None);
    assert_eq!(overtaken(&mut s, 0, (1008, 2064)), Some((191, 0, 8, true)));
}

#[test]
fn a_warps_last_read_of_a_granule_is_the_one_that_counts() {
    let mut s = Pair::new(1024, 2);
    let who = Who { actor: 1, at: 9 };
    for at in 0..1000 {
        s.access_whole(0, u64::MAX, 0, Access::Read, at).unwrap();
        s.access(at % 64, 0xff, 0, Access::Read, at).unwrap();
        s.order.fence(0, &Memory::ALL);
    }
    all(&mut s, 2);
    assert_eq!(s.shadow.overtakes(&s.order, (0, 1024), who), None);
    // An ordinary write takes no reads away, and what an agent has read is none of them.
    s.access(5, 0xffff, 0, Access::Read, 1000).unwrap();
    s.access(5, 0xffff, 0, Access::Write, 1001).unwrap();
    let lock = s.shadow.lock(&[(0, 64)], Who { actor: 0, at: 7 }, "a copy");
    s.shadow.unlock(&s.order, lock);
    all(&mut s, 2);
    let (granule, read) = s.shadow.overtakes(&s.order, (0, 1024), who).unwrap();
    assert_eq!((granule, read.actor, read.at, read.ordered), (5, 0, 1000, true));
}
