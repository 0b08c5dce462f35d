//! Threads of a library, which must not come to need memory of their own when there is none.
//!
//! The standard library and the C library allocate what a thread has to itself: when it begins, when it first uses a
//! variable of its own, and when it first has one that is to be dropped at its end. They end the process where they cannot.

use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::has_system_memory;

/// So long [`begin`] waits for the thread. What a thread has to itself is made under the dynamic loader's lock, and a
/// caller that is a constructor of what dlopen(3) loads holds that: the thread cannot go on before its caller does.
const PATIENCE: Duration = Duration::from_millis(200);

/// A thread that has begun, and waits for what it is to work on. It ends if there comes nothing.
#[derive(Debug)]
pub struct Begun<T>(Arc<OnceLock<Option<T>>>);

/// Begins a thread: it calls `touch`, which uses all that the thread is going to have to itself, and then `run`, with what
/// it is [given](Begun::give). Returns when `touch` has returned, or has not for long.
///
/// # Errors
/// Where there is no memory, or no thread to be had.
pub fn begin<T>(builder: Builder, touch: fn(), run: fn(T)) -> io::Result<Begun<T>>
where
    T: Copy + Send + Sync + 'static,
{
    if !has_system_memory() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // Channels have variables of the thread, these have none.
    let given = Arc::new(OnceLock::new());
    let touched = Arc::new((Mutex::new(false), Condvar::new()));
    let there = (Arc::clone(&given), Arc::clone(&touched));
    builder.spawn(move || {
        touch();
        let (given, touched) = there;
        *touched.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        touched.1.notify_one();
        if let Some(given) = *given.wait() {
            run(given);
        }
    })?;
    let waits = touched.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(
        touched
            .1
            .wait_timeout_while(waits, PATIENCE, |touched| !*touched),
    );
    Ok(Begun(given))
}

impl<T> Begun<T> {
    /// Gives it what it is to work on.
    pub fn give(self, work: T) {
        let _ = self.0.set(Some(work));
    }
}

impl<T> Drop for Begun<T> {
    fn drop(&mut self) {
        // Nothing comes any more, if nothing has come.
        let _ = self.0.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    static TOUCHED: Mutex<u32> = Mutex::new(0);

    fn touch() {
        *TOUCHED.lock().unwrap() += 1;
    }

    #[test]
    fn a_thread_runs_with_what_it_is_given_or_not_at_all() {
        fn run(to: &'static Sender<u32>) {
            to.send(*TOUCHED.lock().unwrap()).unwrap();
        }
        let (sender, receiver): (Sender<u32>, Receiver<u32>) = channel();
        let sender: &'static Sender<u32> = Box::leak(Box::new(sender));
        let begun = begin(Builder::new(), touch, run).unwrap();
        assert_eq!(*TOUCHED.lock().unwrap(), 1);
        begun.give(sender);
        assert_eq!(receiver.recv(), Ok(1));
        drop(begin(Builder::new(), touch, run).unwrap());
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn a_thread_that_needs_what_its_caller_holds_begins_later() {
        static HELD: Mutex<()> = Mutex::new(());
        static RUN: OnceLock<u32> = OnceLock::new();
        fn run(with: u32) {
            RUN.set(with).unwrap();
        }
        let held = HELD.lock().unwrap();
        let begun = begin(Builder::new(), || drop(HELD.lock()), run).unwrap();
        begun.give(7);
        assert_eq!(RUN.get(), None);
        drop(held);
        assert_eq!(RUN.wait(), &7);
    }
}
