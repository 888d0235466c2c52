//! How far a collection of shared chunks is. `docs/design/0016-fleet-collection.md`.

use base::GatewayId;
use bytes::Bytes;

use super::{Reader, RecordError, Writer};

/// Version 1 had the number alone.
const VERSION: u8 = 2;

const SETTLED_VERSION: u8 = 1;

/// What a collection is doing. Each follows the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CyclePhase {
    /// None is under way.
    #[default]
    Idle,
    /// Policies let commits go.
    Preparing,
    /// The cycle has begun; holds of earlier ones are waited for.
    Settling,
    /// References are read.
    Marking,
    /// What has no mark is taken.
    Sweeping,
}

/// Who collects: a run of a gateway's collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The gateway.
    pub gateway: GatewayId,
    /// A number that no other run has.
    pub run: u64,
}

impl Default for Turn {
    /// Nobody.
    fn default() -> Self {
        Self {
            gateway: GatewayId::new(0),
            run: 0,
        }
    }
}

/// The current cycle of collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CycleRecord {
    /// Its number.
    pub cycle: u64,
    /// Who holds since an earlier cycle can make nothing durable. At most the cycle.
    pub floor: u64,
    /// What is done.
    pub phase: CyclePhase,
    /// By whom; in [`CyclePhase::Idle`] by whom it was done last.
    pub turn: Turn,
}

/// What a gateway says of its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledRecord {
    /// It has none that is older than this cycle, and takes none.
    pub cycle: u64,
}

impl CycleRecord {
    /// Whether roots that are copied are told.
    #[must_use]
    pub fn listens(&self) -> bool {
        matches!(self.phase, CyclePhase::Settling | CyclePhase::Marking)
    }

    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(VERSION);
        to.u64(self.cycle);
        to.u64(self.floor);
        to.u8(match self.phase {
            CyclePhase::Idle => 0,
            CyclePhase::Preparing => 1,
            CyclePhase::Settling => 2,
            CyclePhase::Marking => 3,
            CyclePhase::Sweeping => 4,
        });
        to.u64(self.turn.gateway.raw());
        to.u64(self.turn.run);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, VERSION)?;
        let record = Self {
            cycle: from.u64()?,
            floor: from.u64()?,
            phase: match from.u8()? {
                0 => CyclePhase::Idle,
                1 => CyclePhase::Preparing,
                2 => CyclePhase::Settling,
                3 => CyclePhase::Marking,
                4 => CyclePhase::Sweeping,
                _ => return Err(RecordError::Field("phase")),
            },
            turn: Turn {
                gateway: GatewayId::new(from.u64()?),
                run: from.u64()?,
            },
        };
        from.end()?;
        if record.floor > record.cycle {
            return Err(RecordError::Field("floor"));
        }
        Ok(record)
    }
}

impl SettledRecord {
    /// Encodes the value.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::new(SETTLED_VERSION);
        to.u64(self.cycle);
        to.finish()
    }

    /// Decodes a stored value.
    ///
    /// # Errors
    ///
    /// The bytes are damaged or of another release.
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let mut from = Reader::new(record, SETTLED_VERSION)?;
        let cycle = from.u64()?;
        from.end()?;
        Ok(Self { cycle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let record = CycleRecord {
            cycle: 5,
            floor: 4,
            phase: CyclePhase::Settling,
            turn: Turn {
                gateway: GatewayId::new(6),
                run: 7,
            },
        };
        let number = |number: u8| [0, 0, 0, 0, 0, 0, 0, number];
        let bytes = [
            &[2][..],
            &number(5),
            &number(4),
            &[2],
            &number(6),
            &number(7),
        ];
        let bytes = bytes.concat();
        assert_eq!(record.encode(), bytes);
        assert_eq!(CycleRecord::decode(&bytes), Ok(record));
        let settled = SettledRecord { cycle: 5 };
        let bytes = [&[1][..], &number(5)].concat();
        assert_eq!(settled.encode(), bytes);
        assert_eq!(SettledRecord::decode(&bytes), Ok(settled));
    }

    #[test]
    fn each_phase_comes_back_and_what_cannot_be_is_refused() {
        let good = CycleRecord {
            cycle: 5,
            floor: 5,
            ..CycleRecord::default()
        };
        let mut bytes = good.encode().to_vec();
        for phase in 0..=4 {
            bytes[17] = phase;
            let decoded = CycleRecord::decode(&bytes).unwrap();
            assert_eq!(decoded.encode(), bytes);
            assert_eq!(decoded.listens(), phase == 2 || phase == 3);
        }
        bytes[17] = 5;
        assert_eq!(
            CycleRecord::decode(&bytes),
            Err(RecordError::Field("phase"))
        );
        bytes[17] = 0;
        bytes[16] = 6;
        assert_eq!(
            CycleRecord::decode(&bytes),
            Err(RecordError::Field("floor"))
        );
        bytes[16] = 5;
        bytes.push(0);
        assert!(CycleRecord::decode(&bytes).is_err());
        assert!(CycleRecord::decode(&bytes[..9]).is_err());
        assert!(SettledRecord::decode(&[1, 0]).is_err());
    }
}
