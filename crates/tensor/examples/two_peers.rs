//! Two peers in one process: one publishes a tensor, the other gets it by key.

use std::sync::Arc;
use std::time::Duration;

use tensor::{Config, DType, Peer, Tensor, TensorMeta, TensorName};
use verbs::Access;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sender = Peer::new(Config {
        listen_address: Some("127.0.0.1:0".to_owned()),
        ..Config::default()
    })?;
    let numbers: Vec<u8> = (1..=4u32).flat_map(u32::to_le_bytes).collect();
    let region = sender.pd().register_vec(numbers, Access::LOCAL_READ)?;
    let meta = TensorMeta::new(DType::scalar(1, 32), vec![2, 2])?;
    let tensor = Tensor::new(meta, Some(Arc::new(region))).map_err(|_| "too short")?;
    sender.publish(TensorName::new("numbers", 0)?, tensor);

    let address = sender.address().ok_or("it listens nowhere")?.to_string();
    let receiver = Peer::new(Config::default())?;
    let remote = receiver.connect(&address)?;
    let get = remote.get(TensorName::new("numbers", 0)?, true, None)?;
    let tensor = get.wait(Some(Duration::from_secs(10)))?.ok_or("nothing")?;
    println!("{}: {:?}", tensor.meta(), tensor.to_vec());
    Ok(())
}
