//! What the work of a simulated thread costs beside its verbs.

use std::time::Duration;

use crate::queue::Ps;
use crate::threads::{is_simulated, synchronize, world};

/// The calling simulated thread handles so many requests of a server: what a core does for them
/// beside its verbs.
pub fn spend_requests(count: u64) {
    if is_simulated() {
        world(|world| {
            let time = world.costs.request * count;
            world.spend(time);
        });
    }
}

/// The calling simulated thread works for so long.
pub fn spend(work: Duration) {
    if is_simulated() {
        let time = Ps::try_from(work.as_nanos() * 1000).unwrap_or(Ps::MAX / 2);
        world(|world| world.spend(time));
    }
}

/// The calling simulated thread looked at so many places that peers WRITE to and found nothing new there.
pub fn spend_empty_looks(count: u64) {
    if is_simulated() {
        world(|world| {
            let time = world.costs.empty_look * count;
            world.spend(time);
        });
    }
}

/// The calling simulated thread adds to the word at this address, which other cores may add to.
pub fn spend_shared_add(addr: u64) {
    if !is_simulated() {
        return;
    }
    synchronize();
    world(|world| {
        let Some(thread) = world.current else { return };
        let clock = world.clock();
        let (own, contended) = (world.costs.atomic_add, world.costs.contended_add);
        let line = world.shared_line(addr / 64, thread);
        let cost = if line.owner == thread { own } else { contended };
        line.owner = thread;
        let done = line.free.take(clock, cost);
        world.spend(done - clock);
        world.catch_up();
    });
}
