//! The headers of Go's `net/rpc`, whose bodies follow as values of their own.

gob::gob_struct! {
    pub(crate) struct Request as "Request" {
        pub(crate) service_method: String as "ServiceMethod",
        pub(crate) seq: u64 as "Seq",
    }

    pub(crate) struct Response as "Response" {
        pub(crate) service_method: String as "ServiceMethod",
        pub(crate) seq: u64 as "Seq",
        /// Empty for a call that was carried out.
        pub(crate) error: String as "Error",
    }
}
