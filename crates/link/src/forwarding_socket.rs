//! Forwarding of packets that reached the wrong process of a fabric, through Unix sockets in its folder.
//!
//! Only processes of the folder's owner can write to these sockets. So a forwarded packet is trusted as much as a
//! packet that the kernel delivers.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use roce::icrc::{IcrcFields, IpAddressPair};

use crate::config::FabricMembership;
use crate::error::LinkError;
use crate::packet::ReceivedPacket;

/// Bytes of the header of a forwarded packet: address family, traffic class, flag for a hop limit, hop limit, source
/// port, destination port and identification. The addresses follow in 16 bytes each.
const FORWARDED_HEADER_BYTES: usize = 10 + 2 * 16;

/// The forwarding socket of this process, and the folder of the other processes' sockets.
#[derive(Debug)]
pub(crate) struct ForwardingSocket {
    socket: UnixDatagram,
    /// Descriptor of the folder. Paths through `/proc/self/fd` are short whatever the folder's path is; a socket's path
    /// has 107 bytes at most.
    folder: fs::File,
    socket_file_path: PathBuf,
}

impl ForwardingSocket {
    pub(crate) fn open(fabric: &FabricMembership) -> Result<ForwardingSocket, LinkError> {
        let path = fabric.folder.join(socket_file_name(fabric.slot));
        let open = || {
            let folder = fs::File::open(&fabric.folder)?;
            let short = socket_path(&folder, fabric.slot);
            match fs::remove_file(&short) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let socket = UnixDatagram::bind(short)?;
            socket.set_nonblocking(true)?;
            Ok((socket, folder))
        };
        match open() {
            Ok((socket, folder)) => Ok(ForwardingSocket {
                socket,
                folder,
                socket_file_path: path,
            }),
            Err(source) => Err(LinkError::FabricFile {
                what: "make the socket",
                path,
                source,
            }),
        }
    }

    /// Forwards a packet to the process with `slot`.
    ///
    /// # Errors
    /// No process has the slot, or its queue is full.
    pub(crate) fn forward_to_process(
        &self,
        slot: u16,
        packet: &ReceivedPacket<'_>,
    ) -> io::Result<()> {
        let bytes = encode_forwarded_packet(packet);
        let path = socket_path(&self.folder, slot);
        self.socket.send_to(&bytes, path).map(drop)
    }

    /// Returns a packet that another process has forwarded, if one has arrived.
    pub(crate) fn try_receive<'a>(&self, buffer: &'a mut [u8]) -> Option<ReceivedPacket<'a>> {
        let len = self.socket.recv(buffer).ok()?;
        decode_forwarded_packet(buffer.get(..len)?)
    }

    /// Removes the socket's file.
    pub(crate) fn remove_socket_file(&self) {
        // An error is ignored: if the folder was deleted, so was the file.
        let _ = fs::remove_file(&self.socket_file_path);
    }
}

impl AsFd for ForwardingSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn socket_file_name(slot: u16) -> String {
    format!("link-{slot}.sock")
}

fn socket_path(folder: &fs::File, slot: u16) -> PathBuf {
    format!(
        "/proc/self/fd/{}/{}",
        folder.as_raw_fd(),
        socket_file_name(slot)
    )
    .into()
}

fn encode_forwarded_packet(packet: &ReceivedPacket<'_>) -> Vec<u8> {
    let frame = &packet.icrc_fields;
    let mut bytes = Vec::with_capacity(FORWARDED_HEADER_BYTES + packet.bytes.len());
    let family = match frame.addresses {
        IpAddressPair::V4 { .. } => 4,
        IpAddressPair::V6 { .. } => 6,
    };
    let limit = packet.hop_limit;
    bytes.extend([family, packet.traffic_class]);
    bytes.extend([u8::from(limit.is_some()), limit.unwrap_or(0)]);
    bytes.extend(frame.src_port.to_be_bytes());
    bytes.extend(frame.dst_port.to_be_bytes());
    bytes.extend(frame.identification.to_be_bytes());
    for ip in [frame.addresses.src(), frame.addresses.dst()] {
        let octets = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        bytes.extend(octets);
    }
    bytes.extend(packet.bytes);
    bytes
}

fn decode_forwarded_packet(bytes: &[u8]) -> Option<ReceivedPacket<'_>> {
    let (header, packet) = bytes.split_first_chunk::<FORWARDED_HEADER_BYTES>()?;
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
        Some(octets.into())
    };
    let (src, dst) = (address(10)?, address(26)?);
    let addresses = match (header[0], src, dst) {
        (6, IpAddr::V6(src), IpAddr::V6(dst)) => IpAddressPair::V6 { src, dst },
        _ => IpAddressPair::new(src, dst)?,
    };
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    ReceivedPacket::new(
        IcrcFields {
            addresses,
            src_port: word(4),
            dst_port: word(6),
            identification: word(8),
        },
        header[1],
        (header[2] != 0).then_some(header[3]),
        packet,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_decoded_as_they_were_encoded() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let frame = IcrcFields {
                addresses: IpAddressPair::new(src.parse().unwrap(), dst.parse().unwrap()).unwrap(),
                src_port: 0xd078,
                dst_port: 4791,
                identification: 77,
            };
            for limit in [None, Some(0), Some(64)] {
                let packet = ReceivedPacket::new(frame, 3, limit, &[9; 16]).unwrap();
                assert_eq!(
                    decode_forwarded_packet(&encode_forwarded_packet(&packet)),
                    Some(packet)
                );
            }
        }
    }

    #[test]
    fn what_is_too_short_is_no_packet() {
        for len in 0..FORWARDED_HEADER_BYTES + 16 {
            assert_eq!(decode_forwarded_packet(&vec![0; len]), None);
        }
        assert!(decode_forwarded_packet(&[0; FORWARDED_HEADER_BYTES + 16]).is_some());
    }

    #[test]
    fn sockets_have_a_folder_whose_path_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(200));
        fs::create_dir(&long).unwrap();
        let open = |slot| {
            let folder = long.clone();
            ForwardingSocket::open(&FabricMembership { folder, slot }).unwrap()
        };
        let (here, there) = (open(1), open(2));
        let frame = IcrcFields {
            addresses: IpAddressPair::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap(),
            src_port: 1,
            dst_port: 2,
            identification: 3,
        };
        let packet = ReceivedPacket::new(frame, 0, None, &[5; 20]).unwrap();
        here.forward_to_process(2, &packet).unwrap();
        assert!(here.forward_to_process(3, &packet).is_err());
        assert_eq!(there.try_receive(&mut [0; 100]), Some(packet));
        assert_eq!(there.try_receive(&mut [0; 100]), None);
    }
}
