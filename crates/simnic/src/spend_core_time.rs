//! Costs of a simulated thread's work other than verbs.

use std::time::Duration;

use crate::event_queue::Ps;
use crate::threads::{is_simulated, run_due_events_if_far_ahead, with_simulation};

/// Advances the calling simulated thread's clock by the work of a server for `count` requests, without the verbs.
pub fn spend_server_request_work(count: u64) {
    if is_simulated() {
        with_simulation(|world| {
            let time = world.current_core_and_memory_costs().server_request_work * count;
            world.advance_clock(time);
        });
    }
}

/// Advances the calling simulated thread's clock by `work`, in the time of a host's core. A DPU's core takes longer, by
/// the factor in the profile.
pub fn spend_core_time(work: Duration) {
    if is_simulated() {
        let time = Ps::try_from(work.as_nanos() * 1000).unwrap_or(Ps::MAX / 2);
        with_simulation(|world| {
            world.advance_clock(world.current_core_and_memory_costs().scaled_core_time(time))
        });
    }
}

/// Advances the calling simulated thread's clock by `count` unsuccessful checks of memory that peers WRITE.
pub fn spend_empty_memory_polls(count: u64) {
    if is_simulated() {
        with_simulation(|world| {
            let time = world.current_core_and_memory_costs().empty_memory_poll * count;
            world.advance_clock(time);
        });
    }
}

/// Advances the calling simulated thread's clock by an atomic add to a word that other cores may add to.
pub fn spend_shared_atomic_add(addr: u64) {
    if !is_simulated() {
        return;
    }
    run_due_events_if_far_ahead();
    with_simulation(|world| {
        let Some(thread) = world.current_thread else {
            return;
        };
        let clock = world.clock();
        let costs = world.current_core_and_memory_costs();
        let (own, contended) = (costs.uncontended_atomic_add, costs.contended_atomic_add);
        let line = world.find_or_add_shared_line(addr / 64, thread);
        let cost = if line.owner_thread == thread {
            own
        } else {
            contended
        };
        line.owner_thread = thread;
        let done = line.serial_access.reserve_time(clock, cost);
        world.advance_clock(done - clock);
        world.apply_due_writes();
    });
}

/// Advances the calling simulated thread's clock by the walk of `overlapped` interleaved chains (one if 0). Each chain
/// accesses `lines` cache lines one after the other, at random places of a working set of `working_set_bytes`.
///
/// The time follows from the core's caches and its memory latency in the profile (`caches`). Without a memory latency
/// in the profile it is 0.
pub fn spend_random_accesses(working_set_bytes: u64, lines: u64, overlapped: u64) {
    if is_simulated() {
        with_simulation(|world| {
            let Some(caches) = &world.current_core_and_memory_costs().caches else {
                return;
            };
            let time = caches.random_access_time(working_set_bytes, lines, overlapped);
            world.advance_clock(time);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::{Cluster, now};

    #[test]
    fn work_takes_longer_beside_other_active_cores_by_the_turbo_frequency() {
        let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
        let time_on = |cores: usize| {
            let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
            let time = Rc::new(Cell::new(None));
            for core in 0..cores {
                let end = Rc::clone(&time);
                cluster.spawn(cluster.host_of_machine(0), format!("{core}"), move || {
                    spend_core_time(Duration::from_nanos(2500));
                    end.set(now());
                });
            }
            cluster.run_until_threads_end().expect("all threads end");
            time.get().expect("virtual time")
        };
        assert_eq!(time_on(1), Duration::from_nanos(2500));
        assert_eq!(time_on(2), Duration::from_nanos(2500));
        assert_eq!(time_on(6), Duration::from_nanos(3000));
        assert_eq!(time_on(14), Duration::from_nanos(3000));
    }

    #[test]
    fn touches_cost_what_the_profile_says_and_nothing_without_a_latency_of_memory() {
        let mut profile = nicmodel::profile::builtin_profile("cib")
            .expect("built in")
            .clone();
        let taken = |profile: &nicmodel::Profile| {
            let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
            let time = Rc::new(Cell::new(None));
            let end = Rc::clone(&time);
            cluster.spawn(cluster.host_of_machine(0), "walks", move || {
                spend_random_accesses(1 << 30, 10, 1);
                end.set(now());
            });
            cluster.run_until_threads_end().expect("it ends");
            time.get()
        };
        assert_eq!(taken(&profile), Some(Duration::ZERO));
        profile.host.memory_ns = profile.host.request_ns.clone();
        profile.host.memory_ns.as_mut().expect("cib has it").value = 100.0;
        assert_eq!(taken(&profile), Some(Duration::from_micros(1)));
        // A thread that is not simulated has no simulated core, so the call has no effect.
        spend_random_accesses(1 << 30, 10, 1);
    }
}
