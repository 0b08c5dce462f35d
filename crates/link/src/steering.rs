//! The BPF program with which the kernel selects the process that receives a packet.
//!
//! Sockets of several processes with the same address and port form a group (`SO_REUSEPORT`). A classic BPF program,
//! which needs no privilege, reads the destination QPN of each packet and returns the index of a socket in the group.
//! The socket belongs to the process whose slot is in the QPN. Packets for an unknown slot go to index 0, and so do
//! packets for QPN 1, the GSI.

use libc::{
    BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_MISC,
    BPF_RET, BPF_RSH, BPF_TAX, BPF_TXA, BPF_W, sock_filter,
};

use crate::QPN_TO_PROCESS_SLOT_SHIFT;

/// QPNs from this one to the end of slot 0, which belongs to no process, are probes. The kernel delivers a probe to the
/// index in the group that its lower bits contain. So the receiver learns its index.
pub(crate) const FIRST_PROBE_QPN: u32 = 1 << 13;

/// Largest number of slots that are compared one after the other; larger sets are halved first.
const MAX_SLOTS_COMPARED_IN_SEQUENCE: usize = 8;

/// Returns the program for a group whose sockets belong to `slots`, in the order of the group.
pub(crate) fn slot_filter_program(slots: &[u16]) -> Vec<sock_filter> {
    let mut places: Vec<(u32, u32)> = slots.iter().map(|s| u32::from(*s)).zip(0..).collect();
    places.sort_unstable();
    let mut program = vec![
        // Bytes 4 to 7 of the BTH: reserved byte and destination QPN. A packet that is too short goes to index 0.
        bpf_statement(BPF_LD | BPF_W | BPF_ABS, 4),
        bpf_statement(BPF_ALU | BPF_AND | BPF_K, 0x00ff_ffff),
        bpf_statement(BPF_MISC | BPF_TAX, 0),
        bpf_statement(BPF_ALU | BPF_RSH | BPF_K, QPN_TO_PROCESS_SLOT_SHIFT),
        bpf_conditional_jump(BPF_JEQ, 0, 0, 5),
        bpf_statement(BPF_MISC | BPF_TXA, 0),
        bpf_conditional_jump(BPF_JGE, FIRST_PROBE_QPN, 0, 2),
        bpf_statement(BPF_ALU | BPF_AND | BPF_K, FIRST_PROBE_QPN - 1),
        bpf_statement(BPF_RET | BPF_A, 0),
        bpf_statement(BPF_RET | BPF_K, 0),
    ];
    append_slot_search(&places, &mut program);
    program
}

/// Appends a binary search of the slot in the accumulator.
fn append_slot_search(places: &[(u32, u32)], program: &mut Vec<sock_filter>) {
    if places.len() <= MAX_SLOTS_COMPARED_IN_SEQUENCE {
        for (slot, place) in places {
            program.push(bpf_conditional_jump(BPF_JEQ, *slot, 0, 1));
            program.push(bpf_statement(BPF_RET | BPF_K, *place));
        }
        program.push(bpf_statement(BPF_RET | BPF_K, 0));
        return;
    }
    let (low, high) = places.split_at(places.len() / 2);
    program.push(bpf_conditional_jump(BPF_JGE, high[0].0, 0, 1));
    let over_low = program.len();
    program.push(bpf_statement(BPF_JMP | BPF_JA, 0));
    append_slot_search(low, program);
    program[over_low].k = (program.len() - over_low - 1) as u32;
    append_slot_search(high, program);
}

fn bpf_statement(code: u32, k: u32) -> sock_filter {
    bpf_instruction(code, k, 0, 0)
}

/// Returns a conditional jump over `if_so` or `if_not` instructions.
fn bpf_conditional_jump(condition: u32, k: u32, if_so: u8, if_not: u8) -> sock_filter {
    bpf_instruction(BPF_JMP | condition | BPF_K, k, if_so, if_not)
}

fn bpf_instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a program as the kernel does, for the instructions that [`program`] uses.
    fn run(program: &[sock_filter], qpn: u32) -> u32 {
        let (mut a, mut x, mut at) = (0, 0, 0);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            let mut branch = |yes: bool| at += usize::from(if yes { step.jt } else { step.jf });
            match code {
                _ if code == BPF_LD | BPF_W | BPF_ABS => a = 0xff00_0000 | qpn,
                _ if code == BPF_ALU | BPF_AND | BPF_K => a &= step.k,
                _ if code == BPF_ALU | BPF_RSH | BPF_K => a >>= step.k,
                _ if code == BPF_MISC | BPF_TAX => x = a,
                _ if code == BPF_MISC | BPF_TXA => a = x,
                _ if code == BPF_JMP | BPF_JEQ | BPF_K => branch(a == step.k),
                _ if code == BPF_JMP | BPF_JGE | BPF_K => branch(a >= step.k),
                _ if code == BPF_JMP | BPF_JA => at += step.k as usize,
                _ if code == BPF_RET | BPF_K => return step.k,
                _ if code == BPF_RET | BPF_A => return a,
                _ => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn every_slot_has_its_place_whatever_the_order() {
        for count in [1_u32, 2, 7, 8, 9, 100, 1023] {
            // 389 and 1023 have no common divisor, so each slot occurs once.
            let slots: Vec<u16> = (0..count).map(|i| (i * 389 % 1023 + 1) as u16).collect();
            let program = slot_filter_program(&slots);
            assert!(program.len() <= 4096, "the kernel takes no more");
            for slot in 0..1024 {
                let place = slots.iter().position(|s| *s == slot).unwrap_or(0);
                let qpn = u32::from(slot) << QPN_TO_PROCESS_SLOT_SHIFT | 16;
                assert_eq!(run(&program, qpn) as usize, place, "slot {slot} of {count}");
            }
        }
    }

    #[test]
    fn the_gsi_is_at_place_0_and_a_probe_where_it_says() {
        let program = slot_filter_program(&[5, 7]);
        let places = [
            0,
            1,
            FIRST_PROBE_QPN - 1,
            FIRST_PROBE_QPN,
            FIRST_PROBE_QPN + 77,
        ]
        .map(|q| run(&program, q));
        assert_eq!(places, [0, 0, 0, 0, 77]);
    }
}
