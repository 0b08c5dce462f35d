//! The sockets through which processes receive management datagrams, and the look-up of listeners for requests by MADs.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, statat, symlinkat, unlinkat};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, sendto, socket_with};

use super::link_names::AddressInLinkName;
use super::{PortFolder, process_in_socket_name};
use crate::addr::IdAddress;
use crate::errno::{INVALID, Result};
use crate::process_identity::ProcessIdentity;

/// Returns the name of a process's socket for MADs. It has the form of other socket names, so that clean-up removes it
/// as well.
fn mad_socket_name_of(process: ProcessIdentity) -> String {
    format!("{process}-0")
}

impl PortFolder {
    /// Makes the socket through which this process, in `slot`, receives MADs from other processes.
    ///
    /// # Errors
    /// The error of making the socket.
    pub(crate) fn make_mad_socket(&self, slot: u16) -> Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let name = mad_socket_name_of(self.process);
        let _ = unlinkat(&self.folder, &name, AtFlags::empty());
        bind(&socket, &self.address(&name)?)?;
        // An earlier process in this slot must be dead.
        let link = roce::mad_delivery::mad_socket_name(slot);
        let _ = unlinkat(&self.folder, &link, AtFlags::empty());
        symlinkat(&name, &self.folder, &link)?;
        Ok(socket)
    }

    /// Returns the socket name of the process that listens at `addr`, for requests for `port_space`.
    pub(crate) fn listener_socket_name_at(
        &self,
        port_space: u32,
        addr: IdAddress,
    ) -> Option<String> {
        let (port_space, port) = addr.port_space_and_port(port_space)?;
        let candidates = AddressInLinkName::listener_addresses_for(addr);
        candidates.into_iter().find_map(|candidate| {
            let link = candidate.link_name(port_space, port);
            let target = rustix::fs::readlinkat(&self.folder, &link, Vec::new()).ok()?;
            let target = target.to_str().ok()?;
            let listens = statat(&self.folder, target, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            let lives = process_in_socket_name(target).is_some_and(|owner| owner.is_alive());
            (listens && lives).then(|| target.to_owned())
        })
    }

    /// Sends a delivery to the process that owns the claim `target`.
    ///
    /// # Errors
    /// The process has no socket, or the socket is full; `EINVAL` if it is this process.
    pub(crate) fn deliver_to(&self, target: &str, delivery: &[u8]) -> Result {
        let owner = process_in_socket_name(target)
            .filter(|owner| *owner != self.process)
            .ok_or(INVALID)?;
        let to = self.address(&mad_socket_name_of(owner))?;
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
