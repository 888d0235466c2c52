//! Calls with idempotency keys (`docs/design/0013-idempotency.md`).

use base::TenantId;

use super::reader::Scan;
use super::{Checker, Remedy};
use crate::keyspace;
use crate::kv::KvError;
use crate::record::call::CallRecord;

/// What the totals of a tenant count: keys, and bytes of their records.
const TOTALS: u8 = 2;

impl Checker<'_> {
    /// That a call's record can be read, and is counted.
    pub(super) async fn check_call(
        &mut self,
        tenant: TenantId,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("idempotency key of tenant {tenant}");
        self.decoded(&place, CallRecord::decode(value));
        if self.reader.get(&keyspace::tenant(tenant)).await?.is_none() {
            self.report
                .add(&place, "the tenant is missing", Remedy::Store);
        }
        for what in 0..TOTALS {
            let total = keyspace::call_total(tenant, what);
            if self.reader.get(&total).await?.is_none() {
                self.report.add(&place, "is not counted", Remedy::Store);
            }
        }
        Ok(())
    }

    /// That a total is that of the tenant's calls.
    pub(super) async fn check_call_total(
        &mut self,
        tenant: TenantId,
        what: u8,
        value: &[u8],
    ) -> Result<(), KvError> {
        let place = format!("total {what} of idempotency keys of tenant {tenant}");
        if what >= TOTALS {
            self.report
                .add(place, "is none that there is", Remedy::Release);
            return Ok(());
        }
        let mut scan = Scan::new(keyspace::calls_of(tenant));
        let (mut keys, mut bytes) = (0_u64, 0_u64);
        loop {
            let page = self.reader.next(&mut scan).await?;
            if page.is_empty() {
                break;
            }
            for (_, value) in page {
                keys += 1;
                bytes += u64::try_from(value.len()).unwrap_or(u64::MAX);
            }
        }
        let counted = if what == 0 { keys } else { bytes };
        let said = value.try_into().map(u64::from_le_bytes).ok();
        if said != Some(counted) {
            let what = match said {
                Some(said) => format!("says {said}, there are {counted}"),
                None => "is not 8 bytes long".into(),
            };
            self.report.add(place, what, Remedy::Store);
        }
        Ok(())
    }
}
