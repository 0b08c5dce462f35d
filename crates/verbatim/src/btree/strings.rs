//! Trees of byte strings: their arguments, and how a client finds out what a server has.

use anyhow::{Context as _, Result, bail};
use btree::load::{MIN_STRING_BYTES, NumberStrings};
use btree::{ByteString, ClientConfig, ClientError, KeyOrValue, PipelinedClient, StringSizes};
use verbs::Context;

use crate::args;

/// The lengths of keys and values.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct StringArgs {
    /// Keys and values are byte strings, and keys have up to so many bytes [default: keys and values are 64-bit
    /// numbers; 32 with --value-size]
    #[arg(long, value_name = "BYTES", value_parser = args::integer_parser_in_range("a size of keys in bytes", 1..=ByteString::MAX_BYTES))]
    key_size: Option<usize>,
    /// Keys and values are byte strings, and values have up to so many bytes [default: 128 with --key-size]
    #[arg(long, value_name = "BYTES", value_parser = args::integer_parser_in_range("a size of values in bytes", 1..=ByteString::MAX_BYTES))]
    value_size: Option<usize>,
}

impl StringArgs {
    /// Returns the sizes if one of them is given.
    pub(super) fn sizes(self) -> Option<StringSizes> {
        let is_given = self.key_size.or(self.value_size).is_some();
        let default = StringSizes::default();
        is_given.then(|| StringSizes {
            key_bytes: self.key_size.unwrap_or(default.key_bytes),
            value_bytes: self.value_size.unwrap_or(default.value_bytes),
        })
    }

    /// Returns the bytes of a key and of a value.
    pub(super) fn key_and_value_bytes(self) -> (usize, usize) {
        let sizes = self.sizes();
        sizes.map_or((8, 8), |sizes| (sizes.key_bytes, sizes.value_bytes))
    }

    /// Returns the bytes of a node, unless `given` says otherwise.
    pub(super) fn node_bytes(self, given: Option<usize>) -> usize {
        let suggested = self.sizes().map(StringSizes::suggested_node_bytes);
        given.or(suggested).unwrap_or(1024)
    }

    /// Returns these arguments as arguments of another command.
    pub(super) fn to_arguments(self) -> Vec<String> {
        self.sizes().map_or_else(Vec::new, |sizes| {
            vec![
                format!("--key-size={}", sizes.key_bytes),
                format!("--value-size={}", sizes.value_bytes),
            ]
        })
    }
}

/// Returns the strings of a load.
pub(super) fn strings_for_key_numbers(sizes: StringSizes) -> Result<NumberStrings> {
    NumberStrings::new(sizes).with_context(|| {
        format!(
            "generated keys and values have {MIN_STRING_BYTES} bytes or more, and the server's have up to {} and {}: \
             give the server a larger --key-size or --value-size",
            sizes.key_bytes, sizes.value_bytes
        )
    })
}

/// A client of a tree of numbers, or of one of byte strings.
pub(super) enum OfEitherKeys<N, S> {
    Numbers(N),
    /// With the server's limits.
    Strings(S, StringSizes),
}

/// Connects a client of numbers, and one of byte strings if the server has those.
pub(super) fn connect_by_key_type<N, S>(
    numbers: impl FnOnce() -> Result<N, ClientError>,
    strings: impl FnOnce() -> Result<S, ClientError>,
) -> Result<OfEitherKeys<N, S>> {
    match numbers() {
        Ok(client) => Ok(OfEitherKeys::Numbers(client)),
        Err(ClientError::OtherKeyType(Some(sizes))) => match strings() {
            Ok(client) => Ok(OfEitherKeys::Strings(client, sizes)),
            Err(ClientError::OtherKeyType(_)) => {
                bail!("some of the servers have numbers as keys, and some have byte strings")
            }
            Err(e) => Err(e).context("is the server running?"),
        },
        Err(e) => Err(e).context("is the server running?"),
    }
}

/// Connects to each server. They must be all that share the keys, in the order of their parts, and have the same limits of
/// keys and values.
pub(super) fn connect_all<T: KeyOrValue>(
    context: &Context,
    servers: &[ClientConfig],
) -> Result<Vec<PipelinedClient<T>>, ClientError> {
    let connect = |config: &ClientConfig| PipelinedClient::connect_on(context, config.clone());
    let clients = servers.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    for (number, client) in clients.iter().enumerate() {
        client.check_server_place(number, clients.len())?;
    }
    if let Some((first, others)) = clients.split_first() {
        for other in others {
            other.check_key_and_value_limits(first.key_and_value_limits())?;
        }
    }
    Ok(clients)
}
