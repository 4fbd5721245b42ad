//! What each warp of a cluster knows of the others: vector clocks.
//!
//! Time is counted in *stamps*, which grow whenever warps synchronise. `seen[b][a]` is the stamp up to which b knows what
//! a did: an access of a is ordered before b's next one if its stamp is smaller. Barriers, arrivals and waits pass on
//! what the arriving warps know.
//!
//! The copy engine reads and writes memory through a proxy of its own. What it has written for an mbarrier is known to those
//! that have waited there: every mbarrier has a column, a *channel*, beside those of the warps. What a warp has written,
//! the engine sees only after a proxy fence somewhere on the way: `fenced` is what `seen` was at such fences. The same goes for what a
//! warp has read and the engine is to overwrite. Fences for shared memory and for global memory are told apart.
//!
//! The fence need not be that of the thread which read or wrote. PTX asks for one on the causality path from the first access to the
//! second, so a copying thread that has waited at an mbarrier may fence for all that arrived there.

use std::collections::VecDeque;

/// Names a warp of the cluster (its block's rank times the warps of a block, plus its number) or a channel.
pub(crate) type Actor = u16;

/// The memory that a proxy fence is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    Shared,
    Global,
}

impl Memory {
    pub(crate) const ALL: [Self; 2] = [Self::Shared, Self::Global];
}

/// What was known at some moment, to be passed on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    seen: Vec<u32>,
    /// By [`Memory`].
    fenced: [Vec<u32>; 2],
}

impl Clock {
    /// Takes in what another one knows.
    pub(crate) fn join(&mut self, other: &Self) {
        join(&mut self.seen, &other.seen);
        for (to, from) in self.fenced.iter_mut().zip(&other.fenced) {
            join(to, from);
        }
    }

    /// Whether what an actor did at a stamp is known.
    pub(crate) fn knows(&self, actor: Actor, stamp: u32) -> bool {
        self.seen.get(usize::from(actor)).is_some_and(|&seen| stamp < seen)
    }

    /// Learns what an actor did before a stamp, as if a proxy fence were behind it.
    pub(crate) fn learn(&mut self, actor: Actor, stamp: u32) {
        self.see(actor, stamp);
        for fenced in &mut self.fenced {
            raise(fenced, actor, stamp);
        }
    }

    /// Learns what an actor did before a stamp.
    pub(crate) fn see(&mut self, actor: Actor, stamp: u32) {
        raise(&mut self.seen, actor, stamp);
    }
}

fn raise(list: &mut Vec<u32>, actor: Actor, stamp: u32) {
    let index = usize::from(actor);
    if list.len() <= index {
        list.resize(index + 1, 1);
    }
    list[index] = list[index].max(stamp);
}

fn join(to: &mut Vec<u32>, from: &[u32]) {
    if to.len() < from.len() {
        to.resize(from.len(), 1);
    }
    for (to, &from) in to.iter_mut().zip(from) {
        *to = from.max(*to);
    }
}

/// Channels of a cluster.
const MOST_CHANNELS: usize = 1 << 12;

/// Arrivals of an actor that are remembered.
const MOST_ARRIVALS: usize = 64;

/// The clocks of a cluster.
pub(crate) struct Order {
    actors: usize,
    /// Actors and channels; rows have this length.
    width: usize,
    channels: usize,
    /// Channels that were given back.
    free: Vec<Actor>,
    now: u32,
    seen: Vec<u32>,
    /// By [`Memory`].
    fenced: [Vec<u32>; 2],
    /// For each actor, the stamps and instructions of its last arrivals at mbarriers, for findings.
    arrivals: Vec<VecDeque<(u32, u32)>>,
}

impl Order {
    /// Clocks for so many warps; `engine` says whether the kernel uses the copy engine or anything else that has channels.
    pub(crate) fn new(actors: u32, engine: bool) -> Self {
        let actors = actors as usize;
        let width = actors + if engine { 16 } else { 0 };
        // Stamp 0 is before everything, so that what was never touched is always known.
        let rows = vec![1; actors * width];
        Self {
            actors,
            width,
            channels: 0,
            free: Vec::new(),
            now: 1,
            fenced: if engine { [rows.clone(), rows.clone()] } else { Default::default() },
            seen: rows,
            arrivals: vec![VecDeque::new(); if engine { actors } else { 0 }],
        }
    }

    #[inline(always)]
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// What an actor knows of the others.
    #[inline(always)]
    pub(crate) fn seen(&self, actor: u32) -> &[u32] {
        let at = actor as usize * self.width;
        &self.seen[at..at + self.width]
    }

    /// What of that an agent that works for it knows: the part behind a proxy fence.
    pub(crate) fn fenced(&self, actor: u32, memory: Memory) -> &[u32] {
        let at = actor as usize * self.width;
        self.fenced[memory as usize].get(at..at + self.width).unwrap_or_default()
    }

    /// Whether an actor knows what another one did at a stamp.
    pub(crate) fn knows(&self, actor: u32, other: Actor, stamp: u32) -> bool {
        actor == u32::from(other) || stamp < self.seen(actor)[usize::from(other)]
    }

    /// A channel: one that was given back, or a new one.
    ///
    /// There are so many of them; who has more mbarriers than that at a time shares them with others.
    pub(crate) fn channel(&mut self) -> Actor {
        if let Some(channel) = self.free.pop() {
            return channel;
        }
        let channel = self.actors + self.channels % MOST_CHANNELS;
        self.channels += 1;
        if channel >= self.width {
            let width = (2 * self.width).max(channel + 1);
            for rows in [&mut self.seen].into_iter().chain(&mut self.fenced) {
                let mut wide = vec![1; self.actors * width];
                for (to, from) in wide.chunks_exact_mut(width).zip(rows.chunks_exact(self.width)) {
                    to[..from.len()].copy_from_slice(from);
                }
                *rows = wide;
            }
            self.width = width;
        }
        channel as Actor
    }

    /// Gives a channel back. What comes on it later has later stamps, so nobody takes it for known.
    pub(crate) fn give_back(&mut self, channel: Actor) {
        self.free.push(channel);
    }

    /// Lets time go on.
    pub(crate) fn tick(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// Passes on what an actor has done so far and knows; what it does from now on is not part of it.
    pub(crate) fn release(&mut self, actor: u32) -> Clock {
        let now = self.tick();
        let fenced = Memory::ALL.map(|memory| self.fenced(actor, memory).to_vec());
        let mut clock = Clock { seen: self.seen(actor).to_vec(), fenced };
        clock.seen[actor as usize] = now;
        clock
    }

    /// Remembers that an actor has just passed on what it has done, at an mbarrier.
    pub(crate) fn arrived(&mut self, actor: u32, at: u32) {
        let Some(arrivals) = self.arrivals.get_mut(actor as usize) else { return };
        if arrivals.len() == MOST_ARRIVALS {
            arrivals.pop_front();
        }
        arrivals.push_back((self.now, at));
    }

    /// The first arrival of another actor behind what it did at a stamp, if an actor has learnt of it and it is still remembered.
    pub(crate) fn arrival_behind(&self, actor: u32, other: Actor, stamp: u32) -> Option<u32> {
        let arrivals = self.arrivals.get(usize::from(other)).filter(|_| actor != u32::from(other))?;
        if arrivals.len() == MOST_ARRIVALS && arrivals.front().is_some_and(|&(first, _)| first > stamp) {
            return None;
        }
        let &(passed_on, at) = arrivals.iter().find(|(passed_on, _)| *passed_on > stamp)?;
        (passed_on <= self.seen(actor)[usize::from(other)]).then_some(at)
    }

    /// An actor learns what was passed on.
    pub(crate) fn acquire(&mut self, actor: u32, clock: &Clock) {
        let at = actor as usize * self.width;
        join_row(&mut self.seen[at..at + self.width], &clock.seen);
        for (rows, fenced) in self.fenced.iter_mut().zip(&clock.fenced) {
            if !rows.is_empty() {
                join_row(&mut rows[at..at + self.width], fenced);
            }
        }
    }

    /// A proxy fence: all that an actor did to some memory, and knows of it, is visible to agents that work for it.
    pub(crate) fn fence(&mut self, actor: u32, memories: &[Memory]) {
        if self.fenced[0].is_empty() {
            return;
        }
        let now = self.tick();
        let at = actor as usize * self.width;
        for &memory in memories {
            let fenced = &mut self.fenced[memory as usize][at..at + self.width];
            join_row(fenced, &self.seen[at..at + self.width]);
            fenced[actor as usize] = now;
        }
    }

    /// A barrier has completed. `arrivals` has each warp that took part, with what it passed on if it did not wait.
    pub(crate) fn barrier(&mut self, arrivals: &[(u32, Option<Clock>)]) {
        let mut all = Clock::default();
        for (actor, clock) in arrivals {
            match clock {
                Some(clock) => all.join(clock),
                None => {
                    let at = *actor as usize * self.width;
                    join(&mut all.seen, &self.seen[at..at + self.width]);
                    for (all, rows) in all.fenced.iter_mut().zip(&self.fenced) {
                        join(all, rows.get(at..at + self.width).unwrap_or_default());
                    }
                }
            }
        }
        let now = self.tick();
        for (actor, clock) in arrivals {
            if clock.is_none() {
                all.seen[*actor as usize] = now;
            }
        }
        for (actor, clock) in arrivals {
            if clock.is_none() {
                self.acquire(*actor, &all);
            }
        }
    }
}

fn join_row(to: &mut [u32], from: &[u32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = from.max(*to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_released_before_an_acquire_is_known_after_it() {
        let mut order = Order::new(3, true);
        let before = order.now();
        let clock = order.release(0);
        let after = order.now();
        assert!(!order.knows(1, 0, before));
        order.acquire(1, &clock);
        assert!(order.knows(1, 0, before) && !order.knows(1, 0, after) && !order.knows(2, 0, before));
        // It is passed on.
        let clock = order.release(1);
        order.acquire(2, &clock);
        assert!(order.knows(2, 0, before));
    }

    #[test]
    fn agents_see_what_was_fenced_before_it_was_passed_on() {
        let mut order = Order::new(2, true);
        let write = order.now();
        let early = order.release(0);
        order.fence(0, &Memory::ALL);
        let late = order.release(0);
        order.acquire(1, &early);
        assert!(order.knows(1, 0, write) && order.fenced(1, Memory::Shared)[0] <= write);
        order.acquire(1, &late);
        assert!(order.fenced(1, Memory::Shared)[0] > write);
    }

    #[test]
    fn a_fence_for_one_memory_is_none_for_the_other() {
        let mut order = Order::new(2, true);
        let write = order.now();
        order.fence(0, &[Memory::Global]);
        let clock = order.release(0);
        order.acquire(1, &clock);
        order.barrier(&[(0, None), (1, None)]);
        for actor in [0, 1] {
            assert!(order.fenced(actor, Memory::Global)[0] > write);
            assert!(order.fenced(actor, Memory::Shared)[0] <= write);
        }
    }

    #[test]
    fn channels_keep_what_is_known_when_rows_grow() {
        let mut order = Order::new(2, true);
        let clock = order.release(0);
        order.acquire(1, &clock);
        let stamp = order.seen(1)[0];
        let channels: Vec<_> = (0..40).map(|_| order.channel()).collect();
        assert_eq!(channels, (2..42).collect::<Vec<_>>());
        assert_eq!(order.seen(1)[0], stamp);
        let mut clock = Clock::default();
        clock.learn(41, 7);
        order.acquire(0, &clock);
        assert!(order.knows(0, 41, 6) && !order.knows(0, 41, 7) && !order.knows(1, 41, 6));
    }

    #[test]
    fn a_channel_that_was_given_back_is_used_again() {
        let mut order = Order::new(2, true);
        for _ in 0..10_000 {
            let channel = order.channel();
            assert_eq!(channel, 2);
            order.give_back(channel);
        }
        assert_eq!(order.width, 18, "the clocks do not grow");
    }

    #[test]
    fn the_arrival_behind_something_is_the_first_that_was_learnt_of() {
        let mut order = Order::new(2, true);
        let arrive = |order: &mut Order, at| {
            let clock = order.release(0);
            order.arrived(0, at);
            clock
        };
        arrive(&mut order, 1);
        let read = order.now();
        let second = arrive(&mut order, 2);
        arrive(&mut order, 3);
        assert_eq!(order.arrival_behind(1, 0, read), None, "nobody has told");
        order.acquire(1, &second);
        assert_eq!(order.arrival_behind(1, 0, read), Some(2));
        assert_eq!(order.arrival_behind(0, 0, read), None, "program order needs no arrival");
        // What is no longer remembered is not made up.
        let last = (0..MOST_ARRIVALS as u32).map(|i| arrive(&mut order, i)).last().unwrap();
        order.acquire(1, &last);
        assert_eq!(order.arrival_behind(1, 0, read), None);
    }

    #[test]
    fn what_is_seen_is_behind_no_proxy_fence() {
        let mut order = Order::new(2, true);
        let mut clock = Clock::default();
        clock.see(0, 7);
        order.acquire(1, &clock);
        assert!(order.knows(1, 0, 6) && order.fenced(1, Memory::Shared)[0] <= 6);
        clock.learn(0, 7);
        order.acquire(1, &clock);
        assert!(order.fenced(1, Memory::Shared)[0] > 6);
    }
}
