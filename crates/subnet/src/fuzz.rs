//! The fuzz target of this crate, and the replay of its corpus.

use crate::mad::{MadFields, SA_DATA_OFFSET, method};
use crate::topology::{ChannelAdapter, Port};
use crate::{GroupMember, Subnet, SubnetAnswer};

/// A subnet of two adapters; the first has two ports.
fn example_subnet() -> Subnet {
    let port = |number, lid| Port {
        number,
        lid,
        guid: lid.into(),
        pkeys: vec![0xffff],
        ..Port::default()
    };
    let adapter = |ports| ChannelAdapter {
        ports,
        ..ChannelAdapter::default()
    };
    Subnet {
        adapters: vec![
            adapter(vec![port(1, 1), port(2, 2)]),
            adapter(vec![port(1, 3)]),
        ],
        group_members: vec![GroupMember {
            mgid: [0xff; 16],
            lid: 3,
        }],
    }
}

/// Answers any MAD. The first byte is the destination.
///
/// # Panics
/// If a response is no response to the request.
pub fn answer_any_mad(bytes: &[u8]) {
    let Some((&destination, mad)) = bytes.split_first() else {
        return;
    };
    if let SubnetAnswer::Response(response) =
        example_subnet().answer_request(mad, 1, destination.into())
    {
        assert!(response.len() >= SA_DATA_OFFSET);
        assert!(MadFields(&response).method() & method::RESPONSE != 0);
        if mad.len() >= 16 {
            assert_eq!(MadFields(&response).tid(), MadFields(mad).tid());
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_of_requests_is_replayed() {
        corpus::replay("subnet", super::answer_any_mad);
    }
}
