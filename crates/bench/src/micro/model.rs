//! Predictions of the NIC model for a stream.

use nicmodel::{
    Bounds, Footprint, Mix, MixOperation, Operation, OperationError, PostMethod, Profile, Role,
};
use nicmodel::{Transport, Verb as ModelVerb, atomic_locks};

use super::parameters::{MeasuredRole, VerbStream};
use super::verb::Verb;

impl VerbStream {
    /// Returns one of the stream's WRs as an operation of the model.
    #[must_use]
    pub fn to_model_operation(&self) -> Operation {
        let (verb, transport) = match self.verb {
            Verb::UdSend => (ModelVerb::Send, Transport::Ud),
            Verb::RcSend => (ModelVerb::Send, Transport::Rc),
            Verb::UcSend => (ModelVerb::Send, Transport::Uc),
            Verb::RcWrite => (ModelVerb::RdmaWrite, Transport::Rc),
            Verb::UcWrite => (ModelVerb::RdmaWrite, Transport::Uc),
            Verb::RcRead => (ModelVerb::RdmaRead, Transport::Rc),
            Verb::Atomics => (ModelVerb::AtomicFetchAndAdd, Transport::Rc),
        };
        let payload = u32::try_from(self.payload_bytes).unwrap_or(u32::MAX);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let signaled = 1.0 / self.signal_every as f64;
        Operation {
            inline: self.inline,
            has_imm: self.verb.is_send() && payload == 0,
            ..Operation::new(verb, transport, payload).with_signaled_fraction(signaled)
        }
    }

    /// Returns how the stream passes its WQEs to the NIC.
    #[must_use]
    pub fn post_method(&self) -> PostMethod {
        if self.wrs_per_doorbell > 1 {
            PostMethod::Doorbell
        } else {
            PostMethod::WqeByMmio
        }
    }

    /// Returns the footprint of one of the stream's WRs on both sides.
    ///
    /// # Errors
    /// When the NIC does not support the operation.
    pub fn footprint(&self, profile: &Profile) -> Result<Footprint, OperationError> {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let batch = self.wrs_per_doorbell as f64;
        Footprint::of_one(
            profile,
            &self.to_model_operation(),
            self.post_method(),
            batch,
        )
    }

    /// Returns the rate that each resource of the measured machine allows, without the needs of the
    /// other side. The four reports per window that receivers of SENDs send are not included.
    ///
    /// # Errors
    /// When the NIC does not support the operation.
    pub fn rate_bounds(&self, profile: &Profile) -> Result<Bounds, OperationError> {
        let role = match self.measured_role {
            MeasuredRole::Outbound => Role::Requester,
            MeasuredRole::Inbound => Role::Responder,
        };
        let (addresses, spacing) = (
            self.atomic_counters as u64,
            self.counter_spacing_bytes as u64,
        );
        let queue_pairs =
            u32::try_from(self.threads * self.queue_pairs_per_thread).unwrap_or(u32::MAX);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let load = MixOperation {
            lock_slots: atomic_locks::lock_count_of_counters(profile, addresses, spacing),
            ..MixOperation::new(self.to_model_operation(), role)
                .in_postlists(self.wrs_per_doorbell as f64)
                .on_queue_pairs(queue_pairs)
        };
        let cores = u32::try_from(self.threads).unwrap_or(u32::MAX);
        Bounds::of(profile, &Mix::new(vec![load]).on_cores(cores))
    }
}
