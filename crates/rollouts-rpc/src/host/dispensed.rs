//! Calls on the stream of a dispensed plugin, whatever its kind.

use gob::GobType;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::Method;
use crate::netrpc::client::{CallError, RpcClient};
use crate::wire::RpcError;

/// Calls a method that returns a value.
pub(super) async fn call<A, T>(
    rpc: &RpcClient,
    method: impl Method,
    args: Option<A>,
) -> Result<T, CallError>
where
    A: GobType + Serialize + Sync,
    T: DeserializeOwned + Send + 'static,
{
    rpc.call(&format!("Plugin.{}", method.name()), &args).await
}

/// Calls a method that returns nothing but an error.
pub(super) async fn perform<A>(
    rpc: &RpcClient,
    method: impl Method,
    args: Option<A>,
) -> Result<(), CallError>
where
    A: GobType + Serialize + Sync,
{
    success(call(rpc, method, args).await?)
}

/// `Err` with the plugin's text, if it returned an error.
pub(super) fn success(error: RpcError) -> Result<(), CallError> {
    if error.error_string.is_empty() {
        Ok(())
    } else {
        Err(CallError::Router(error.error_string))
    }
}
