//! The rules of requesters and responders as tables: received packets and the packets that must be sent.
//!
//! The rules are those of IBTA vol. 1, chapter 9.7. A row says so where Soft-RoCE deviates or needs something else.

mod hostile;
mod requester;
mod responder;
mod text;
mod unreliable;
