//! Who asks: without a known token there is no caller, and so no handler that could run.

use std::sync::Arc;

use appset_generator::Failure;
use axum::extract::FromRequestParts;
use axum::http::{header::AUTHORIZATION, request::Parts};

use crate::api::Refused;
use crate::service::Service;

/// The bearer of a known token.
pub(crate) struct Caller {
    /// The token's name.
    pub(crate) token: String,
}

impl FromRequestParts<Arc<Service>> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<Service>,
    ) -> Result<Self, Self::Rejection> {
        let sent = parts.headers.get(AUTHORIZATION).ok_or(Failure::NoToken)?;
        let sent = bearer(sent.as_bytes()).ok_or(Failure::NoToken)?;
        match service.tokens()?.name_of(sent) {
            Some(token) => Ok(Self {
                token: token.to_owned(),
            }),
            // A key that its Secret does not have is sent as it stands in the ConfigMap: `$key` or `$secret:key`.
            None if sent.starts_with(b"$") => Err(Failure::TokenReference.into()),
            None => Err(Failure::WrongToken.into()),
        }
    }
}

/// The token of an Authorization header. The scheme's case does not matter (RFC 9110, 11.1).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer";
    let (scheme, token) = header.split_at_checked(SCHEME.len())?;
    let token = token.strip_prefix(b" ")?.trim_ascii();
    (scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty()).then_some(token)
}
