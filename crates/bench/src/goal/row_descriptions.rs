//! Descriptions of the rows.

use super::Row;

impl Row {
    /// Describes the row in full.
    #[must_use]
    pub fn description(self) -> String {
        if let Some(sends) = self.as_send_stream() {
            return sends.describe(false);
        }
        let text = match self {
            Row::Rpc => {
                "request and response, 8 bytes, in batches: sequencer rpc-batch, one worker"
            }
            Row::RcLatency => "one-way latency of an 8-byte RC SEND",
            Row::RcWrite => "8-byte RDMA WRITE, inline, 1 in 16 signaled, postlists of 16",
            Row::RcWriteSingle => "8-byte RDMA WRITE, inline, 1 in 16 signaled, 1 WR a post",
            Row::FetchAdd => "8-byte fetch-and-add, 16 outstanding",
            Row::WriteMapped => "1 MiB RDMA WRITE, mapped memory",
            Row::WritePrivate => "1 MiB RDMA WRITE, private memory",
            Row::Sequencer => "sequencer spec-s0, one worker, one client process",
            Row::SequencerLead => "sequencer spec-s0 beside the best other design",
            Row::IdleCpu => "idle process with 1,000 connected queue pairs: CPU",
            Row::IdleMemory => "idle process with 1,000 connected queue pairs: memory",
            Row::Connect => "10,000 queue pairs created and connected",
            Row::IbSendBw => "ib_send_bw -s 8 -l 16 through the drop-in",
            Row::IbSendBwUd => "ib_send_bw -c UD -s 8 -l 16 through the drop-in",
            Row::IbSendLat => "ib_send_lat -s 8 through the drop-in",
            Row::IbWriteLat => "ib_write_lat -s 8 through the drop-in",
            Row::IbWriteBw => "ib_write_bw -s 65536 through the drop-in",
            Row::IbWriteStart => {
                "ib_write_bw -n 5 through the drop-in, less the time to fail without a device"
            }
            Row::UctPut => "ucx_perftest -t put_bw -D short -s 8 over rc_verbs through the drop-in",
            Row::UcpPut => "ucx_perftest -t ucp_put_bw -s 8 over rc_verbs through the drop-in",
            Row::WireSend => "8-byte RC SEND by packets, postlists of 16, beside 24-byte datagrams",
            Row::WireWrite => {
                "8-byte RDMA WRITE by packets, postlists of 16, beside 40-byte datagrams"
            }
            Row::WireSendRate => "8-byte RC SEND by packets, postlists of 16",
            Row::WireWriteRate => "8-byte RDMA WRITE by packets, postlists of 16",
            Row::WireTcp => "64 KiB RDMA WRITE by packets, beside TCP",
            Row::WireUdp => "64 KiB RDMA WRITE by packets, beside datagrams as long",
            Row::WireLatency => "half of a round trip of an 8-byte RC SEND by packets",
            Row::WireLoss => "64 KiB RDMA WRITE by packets, 1 % lost each way",
            Row::WireIdle => "idle process with 1,000 queue pairs connected by packets: CPU",
            // Rows of SENDs were handled above.
            _ => self.name(),
        };
        text.to_owned()
    }

    /// Describes the row in few words, for a table.
    #[must_use]
    pub fn label(self) -> String {
        if let Some(sends) = self.as_send_stream() {
            return sends.describe(true);
        }
        let text = match self {
            Row::Rpc => "request and response, 8 B, batches",
            Row::RcLatency => "RC SEND, 8 B: one-way latency",
            Row::RcWrite => "RDMA WRITE, 8 B inline, lists of 16",
            Row::RcWriteSingle => "RDMA WRITE, 8 B inline, 1 a post",
            Row::FetchAdd => "fetch-and-add, 16 outstanding",
            Row::WriteMapped => "RDMA WRITE, 1 MiB, mapped",
            Row::WritePrivate => "RDMA WRITE, 1 MiB, private",
            Row::Sequencer => "sequencer spec-s0, 1 worker",
            Row::SequencerLead => "the same, beside other designs",
            Row::IdleCpu => "idle, 1,000 QPs: CPU",
            Row::IdleMemory => "idle, 1,000 QPs: memory",
            Row::Connect => "create and connect 10,000 QPs",
            Row::IbSendBw => "ib_send_bw -s 8 -l 16",
            Row::IbSendBwUd => "ib_send_bw -c UD -s 8 -l 16",
            Row::IbSendLat => "ib_send_lat -s 8",
            Row::IbWriteLat => "ib_write_lat -s 8",
            Row::IbWriteBw => "ib_write_bw -s 65536",
            Row::IbWriteStart => "ib_write_bw -n 5: all of it",
            Row::UctPut => "UCT put_bw -s 8 over rc_verbs",
            Row::UcpPut => "ucp_put_bw -s 8 over rc_verbs",
            Row::WireSend => "RC SEND, 8 B, lists of 16",
            Row::WireWrite => "RDMA WRITE, 8 B, lists of 16",
            Row::WireSendRate => "RC SEND, 8 B: absolute",
            Row::WireWriteRate => "RDMA WRITE, 8 B: absolute",
            Row::WireTcp | Row::WireUdp => "RDMA WRITE, 64 KiB",
            Row::WireLatency => "RC SEND, 8 B: half a round trip",
            Row::WireLoss => "RDMA WRITE, 64 KiB, 1 % lost",
            Row::WireIdle => "idle, 1,000 remote QPs: CPU",
            // Rows of SENDs were handled above.
            _ => self.name(),
        };
        text.to_owned()
    }
}
