//! The rules of requesters and responders, each as a row: what comes, what goes out.
//!
//! Rules: IBTA vol. 1, chapter 9.7, and where Soft-RoCE does otherwise or needs something else, the row says so.

mod hostile;
mod requester;
mod responder;
mod text;
mod unreliable;
