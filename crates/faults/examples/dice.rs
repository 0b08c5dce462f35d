//! Which of 20 calls of a verb does a plan refuse? Try `cargo run -p verbatim-faults --example dice
//! 'verb=ibv_reg_mr,errno=ENOMEM,p=0.3' 7`.

use faults::{Injector, Plan, PlanError, VerbCallFacts};

fn main() -> Result<(), PlanError> {
    let mut args = std::env::args().skip(1);
    let line = args.next();
    let plan: Plan = line
        .as_deref()
        .unwrap_or("verb=ibv_reg_mr,errno=ENOMEM,p=0.3")
        .parse()?;
    let seed = args.next().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut injector = Injector::new(plan, seed);
    for call in 1..=20 {
        let verdict = injector.decide_verb_call(0, &VerbCallFacts::new("ibv_reg_mr"));
        match verdict.errno {
            Some(errno) => println!("call {call}: refused with errno {errno}"),
            None => println!("call {call}: done"),
        }
    }
    Ok(())
}
