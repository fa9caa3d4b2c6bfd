//! What lies at an address.

use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute as Attribute};
use cudarc::runtime::sys::{cudaMemoryType, cudaPointerAttributes};

use crate::abi::{Address, ConstAddress, Out, Parameters, Value, Written};
use crate::driver::Driver;
use crate::error::Answer;

/// The device of memory that no GPU knows.
const NO_DEVICE: i32 = -2;

/// `cudaPointerAttributes`, its enum a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Attributes {
    kind: u32,
    device: i32,
    device_address: u64,
    host_address: u64,
    reserved: [u64; 8],
}

impl Value for Attributes {
    type Driver = ();
    type Runtime = cudaPointerAttributes;
}

const _: () = assert!(size_of::<Attributes>() == size_of::<cudaPointerAttributes>());

/// What the driver says of an address; all 0 where it knows nothing.
#[derive(Default)]
struct Known {
    memory: u32,
    device: i32,
    device_address: u64,
    host_address: u64,
    managed: u32,
}

impl Known {
    fn of(driver: &Driver, at: Address) -> Answer<Known> {
        let mut known = Known::default();
        let mut asked = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        ];
        let mut answers = [
            &raw mut known.memory as usize,
            &raw mut known.device as usize,
            &raw mut known.device_address as usize,
            &raw mut known.host_address as usize,
            &raw mut known.managed as usize,
        ];
        let (asked, answers) = (asked.as_mut_ptr() as usize, answers.as_mut_ptr() as usize);
        driver.cuPointerGetAttributes(5, Written::new(asked), Parameters(answers), at)?;
        Ok(known)
    }

    fn kind(&self) -> cudaMemoryType {
        const HOST: u32 = CUmemorytype::CU_MEMORYTYPE_HOST as u32;
        match self.memory {
            0 => cudaMemoryType::cudaMemoryTypeUnregistered,
            _ if self.managed != 0 => cudaMemoryType::cudaMemoryTypeManaged,
            HOST => cudaMemoryType::cudaMemoryTypeHost,
            _ => cudaMemoryType::cudaMemoryTypeDevice,
        }
    }
}

/// `cudaPointerGetAttributes`
pub fn attributes(driver: &Driver, mut out: Out<Attributes>, at: ConstAddress) -> Answer {
    let known = Known::of(driver, Address(at.0))?;
    let kind = known.kind();
    let unregistered = kind == cudaMemoryType::cudaMemoryTypeUnregistered;
    out.set(Attributes {
        kind: kind as u32,
        device: if unregistered { NO_DEVICE } else { known.device },
        device_address: known.device_address,
        host_address: if unregistered { at.0 } else { known.host_address },
        reserved: [0; 8],
    });
    Ok(())
}
