//! Moves a thread to another core.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Moves the calling thread to another one of the cores that it may use, chosen by `random`. The scheduler may move it
/// further at any time. Nothing happens if there is no other core or the kernel refuses.
///
/// A mask of one core is set for the duration of two system calls. A mask that another process sets in this time is
/// lost.
pub(super) fn migrate_to_another_core(random: u64) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let here = sched_getcpu();
    let is_other = |cpu: &usize| *cpu != here && allowed.is_set(*cpu);
    let others = (0..CpuSet::MAX_CPU).filter(is_other).count() as u64;
    let Some(nth) = random.checked_rem(others) else {
        return;
    };
    let mut chosen = CpuSet::new();
    let nth = usize::try_from(nth).unwrap_or_default();
    if let Some(cpu) = (0..CpuSet::MAX_CPU).filter(is_other).nth(nth) {
        chosen.set(cpu);
        if sched_setaffinity(None, &chosen).is_ok() {
            // The mask was valid a moment ago. If the cores were taken away since, the kernel has set another one.
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_keeps_the_cores_that_it_may_use() {
        let allowed = sched_getaffinity(None).unwrap();
        for random in 0..100 {
            migrate_to_another_core(random);
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        }
        let mut here = CpuSet::new();
        here.set(
            (0..CpuSet::MAX_CPU)
                .find(|cpu| allowed.is_set(*cpu))
                .unwrap(),
        );
        sched_setaffinity(None, &here).unwrap();
        migrate_to_another_core(1);
        assert_eq!(sched_getaffinity(None).unwrap(), here);
    }
}
