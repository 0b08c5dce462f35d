//! A child process that is killed when its handle is dropped.

use std::process::Child;

/// Handle of a child process, which is killed and waited for on drop.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // `kill` fails if the child has ended already; `wait` reaps the child in either case.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
