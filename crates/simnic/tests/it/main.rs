//! Connected queue pairs of simulated NICs.

mod exactly_once;
mod long_messages;
mod losses;
mod refusals;
mod retries;
mod scene;
mod send_queue;
