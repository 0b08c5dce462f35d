//! The sockets through which processes get management datagrams, and who listens for requests that come so.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, statat, symlinkat, unlinkat};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, sendto, socket_with};

use super::names::Address;
use super::{Ports, owner_of};
use crate::addr::Addr;
use crate::errno::{INVALID, Result};
use crate::process::Process;

/// The name of a process's socket for MADs: among the names of its other sockets, so that it is removed as they are.
fn socket_of(process: Process) -> String {
    format!("{process}-0")
}

impl Ports {
    /// The socket through which the process in `slot`, this one, gets the MADs that others hand on.
    ///
    /// # Errors
    /// What making it says.
    pub(crate) fn receive_mads(&self, slot: u16) -> Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let name = socket_of(self.me);
        let _ = unlinkat(&self.folder, &name, AtFlags::empty());
        bind(&socket, &self.address(&name)?)?;
        // Whoever had the slot before is dead.
        let link = roce::gsi::socket_name(slot);
        let _ = unlinkat(&self.folder, &link, AtFlags::empty());
        symlinkat(&name, &self.folder, &link)?;
        Ok(socket)
    }

    /// The name of the claim of whoever listens at `addr`, for requests for `port_space`.
    pub(crate) fn listener(&self, port_space: u32, addr: Addr) -> Option<String> {
        let (port_space, port) = addr.service(port_space)?;
        let candidates = Address::listeners_for(addr);
        candidates.into_iter().find_map(|candidate| {
            let link = candidate.link(port_space, port);
            let target = rustix::fs::readlinkat(&self.folder, &link, Vec::new()).ok()?;
            let target = target.to_str().ok()?;
            let listens = statat(&self.folder, target, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            let lives = owner_of(target).is_some_and(|owner| owner.is_alive());
            (listens && lives).then(|| target.to_owned())
        })
    }

    /// Hands a delivery to the process whose claim has the name `target`.
    ///
    /// # Errors
    /// It has no socket, or no room; `EINVAL` for this process, which has looked already.
    pub(crate) fn hand_to(&self, target: &str, delivery: &[u8]) -> Result {
        let owner = owner_of(target)
            .filter(|owner| *owner != self.me)
            .ok_or(INVALID)?;
        let to = self.address(&socket_of(owner))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        sendto(
            &socket,
            delivery,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            &to,
        )?;
        Ok(())
    }
}
