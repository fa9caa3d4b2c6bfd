//! Errors: their numbers, names and texts, and the last one of each thread.
//!
//! The runtime numbers its errors as the driver does, so what the driver answers is handed on.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::sync::Once;

use cudarc::runtime::sys::cudaError;

use crate::abi::{Enum, Out};
use crate::driver::{Driver, Streams};

/// An error's number; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(u32);

/// What a function answers.
pub type Answer<T = ()> = Result<T, Error>;

impl Error {
    pub const INVALID_VALUE: Error = Error(cudaError::cudaErrorInvalidValue as u32);
    pub const INVALID_CONFIGURATION: Error = Error(cudaError::cudaErrorInvalidConfiguration as u32);
    pub const INVALID_SYMBOL: Error = Error(cudaError::cudaErrorInvalidSymbol as u32);
    pub const INVALID_DIRECTION: Error = Error(cudaError::cudaErrorInvalidMemcpyDirection as u32);
    pub const INVALID_DEVICE: Error = Error(cudaError::cudaErrorInvalidDevice as u32);
    pub const INVALID_FUNCTION: Error = Error(cudaError::cudaErrorInvalidDeviceFunction as u32);
    pub const MISSING_CONFIGURATION: Error = Error(cudaError::cudaErrorMissingConfiguration as u32);
    pub const NO_DRIVER: Error = Error(cudaError::cudaErrorInsufficientDriver as u32);
    pub const NEWER_DRIVER: Error = Error(cudaError::cudaErrorCallRequiresNewerDriver as u32);
    pub const NOT_FOUND: Error = Error(cudaError::cudaErrorSymbolNotFound as u32);
    pub const NOT_SUPPORTED: Error = Error(cudaError::cudaErrorNotSupported as u32);
    pub const UNKNOWN: Error = Error(cudaError::cudaErrorUnknown as u32);

    /// Its number.
    pub fn code(self) -> u32 {
        self.0
    }

    /// After these a context answers nothing else, until its device is reset.
    fn is_sticky(self) -> bool {
        const ENDED: [cudaError; 10] = [
            cudaError::cudaErrorECCUncorrectable,
            cudaError::cudaErrorIllegalAddress,
            cudaError::cudaErrorLaunchTimeout,
            cudaError::cudaErrorAssert,
            cudaError::cudaErrorHardwareStackError,
            cudaError::cudaErrorIllegalInstruction,
            cudaError::cudaErrorMisalignedAddress,
            cudaError::cudaErrorInvalidAddressSpace,
            cudaError::cudaErrorInvalidPc,
            cudaError::cudaErrorLaunchFailure,
        ];
        ENDED.iter().any(|code| *code as u32 == self.0)
    }
}

/// What the driver answered.
pub fn check(code: u32) -> Answer {
    if code == 0 { Ok(()) } else { Err(Error(code)) }
}

thread_local! {
    /// 0 is none.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Keeps the error of a call for `cudaGetLastError`; gives what C gets.
pub fn remember(answer: Answer) -> u32 {
    let Err(Error(code)) = answer else { return 0 };
    LAST.set(code);
    code
}

/// `cudaGetLastError`: it is forgotten, unless it stays true.
pub fn take_last() -> u32 {
    let code = LAST.get();
    if !Error(code).is_sticky() {
        LAST.set(0);
    }
    code
}

/// `cudaPeekAtLastError`
pub fn last() -> u32 {
    LAST.get()
}

/// A device was reset: what its context last answered is past.
pub fn forget() {
    LAST.set(0);
}

/// Refuses a function, naming it once on stderr.
pub fn refuse(name: &str, said: &Once) -> u32 {
    said.call_once(|| eprintln!("softgpu: {name} is not supported"));
    remember(Err(Error::NOT_SUPPORTED))
}

macro_rules! codes {
    ($($code:ident)*) => {
        /// Every error's number and name.
        static NAMES: &[(u32, &CStr)] = &[$((
            cudaError::$code as u32,
            c_str(concat!(stringify!($code), "\0")),
        )),*];
    };
}

const fn c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name of the table contains a zero"),
    }
}

codes! {
    cudaSuccess cudaErrorInvalidValue cudaErrorMemoryAllocation cudaErrorInitializationError
    cudaErrorCudartUnloading cudaErrorProfilerDisabled cudaErrorProfilerNotInitialized
    cudaErrorProfilerAlreadyStarted cudaErrorProfilerAlreadyStopped cudaErrorInvalidConfiguration
    cudaErrorInvalidPitchValue cudaErrorInvalidSymbol cudaErrorInvalidHostPointer
    cudaErrorInvalidDevicePointer cudaErrorInvalidTexture cudaErrorInvalidTextureBinding
    cudaErrorInvalidChannelDescriptor cudaErrorInvalidMemcpyDirection cudaErrorAddressOfConstant
    cudaErrorTextureFetchFailed cudaErrorTextureNotBound cudaErrorSynchronizationError
    cudaErrorInvalidFilterSetting cudaErrorInvalidNormSetting cudaErrorMixedDeviceExecution
    cudaErrorNotYetImplemented cudaErrorMemoryValueTooLarge cudaErrorStubLibrary cudaErrorInsufficientDriver
    cudaErrorCallRequiresNewerDriver cudaErrorInvalidSurface cudaErrorDuplicateVariableName
    cudaErrorDuplicateTextureName cudaErrorDuplicateSurfaceName cudaErrorDevicesUnavailable
    cudaErrorIncompatibleDriverContext cudaErrorMissingConfiguration cudaErrorPriorLaunchFailure
    cudaErrorLaunchMaxDepthExceeded cudaErrorLaunchFileScopedTex cudaErrorLaunchFileScopedSurf
    cudaErrorSyncDepthExceeded cudaErrorLaunchPendingCountExceeded cudaErrorInvalidDeviceFunction
    cudaErrorNoDevice cudaErrorInvalidDevice cudaErrorDeviceNotLicensed
    cudaErrorSoftwareValidityNotEstablished cudaErrorStartupFailure cudaErrorInvalidKernelImage
    cudaErrorDeviceUninitialized cudaErrorMapBufferObjectFailed cudaErrorUnmapBufferObjectFailed
    cudaErrorArrayIsMapped cudaErrorAlreadyMapped cudaErrorNoKernelImageForDevice cudaErrorAlreadyAcquired
    cudaErrorNotMapped cudaErrorNotMappedAsArray cudaErrorNotMappedAsPointer cudaErrorECCUncorrectable
    cudaErrorUnsupportedLimit cudaErrorDeviceAlreadyInUse cudaErrorPeerAccessUnsupported cudaErrorInvalidPtx
    cudaErrorInvalidGraphicsContext cudaErrorNvlinkUncorrectable cudaErrorJitCompilerNotFound
    cudaErrorUnsupportedPtxVersion cudaErrorJitCompilationDisabled cudaErrorUnsupportedExecAffinity
    cudaErrorUnsupportedDevSideSync cudaErrorContained cudaErrorInvalidSource cudaErrorFileNotFound
    cudaErrorSharedObjectSymbolNotFound cudaErrorSharedObjectInitFailed cudaErrorOperatingSystem
    cudaErrorInvalidResourceHandle cudaErrorIllegalState cudaErrorLossyQuery cudaErrorSymbolNotFound
    cudaErrorNotReady cudaErrorIllegalAddress cudaErrorLaunchOutOfResources cudaErrorLaunchTimeout
    cudaErrorLaunchIncompatibleTexturing cudaErrorPeerAccessAlreadyEnabled cudaErrorPeerAccessNotEnabled
    cudaErrorSetOnActiveProcess cudaErrorContextIsDestroyed cudaErrorAssert cudaErrorTooManyPeers
    cudaErrorHostMemoryAlreadyRegistered cudaErrorHostMemoryNotRegistered cudaErrorHardwareStackError
    cudaErrorIllegalInstruction cudaErrorMisalignedAddress cudaErrorInvalidAddressSpace cudaErrorInvalidPc
    cudaErrorLaunchFailure cudaErrorCooperativeLaunchTooLarge cudaErrorTensorMemoryLeak
    cudaErrorNotPermitted cudaErrorNotSupported cudaErrorSystemNotReady cudaErrorSystemDriverMismatch
    cudaErrorCompatNotSupportedOnDevice cudaErrorMpsConnectionFailed cudaErrorMpsRpcFailure
    cudaErrorMpsServerNotReady cudaErrorMpsMaxClientsReached cudaErrorMpsMaxConnectionsReached
    cudaErrorMpsClientTerminated cudaErrorCdpNotSupported cudaErrorCdpVersionMismatch
    cudaErrorStreamCaptureUnsupported cudaErrorStreamCaptureInvalidated cudaErrorStreamCaptureMerge
    cudaErrorStreamCaptureUnmatched cudaErrorStreamCaptureUnjoined cudaErrorStreamCaptureIsolation
    cudaErrorStreamCaptureImplicit cudaErrorCapturedEvent cudaErrorStreamCaptureWrongThread cudaErrorTimeout
    cudaErrorGraphExecUpdateFailure cudaErrorExternalDevice cudaErrorInvalidClusterSize
    cudaErrorFunctionNotLoaded cudaErrorInvalidResourceType cudaErrorInvalidResourceConfiguration
    cudaErrorUnknown cudaErrorApiFailureBase
}

/// Texts of the errors that only the runtime has; the others' are the driver's.
const TEXTS: &[(Error, &CStr)] = &[
    (Error::INVALID_CONFIGURATION, c"invalid configuration argument"),
    (Error::INVALID_SYMBOL, c"invalid device symbol"),
    (Error::INVALID_DIRECTION, c"invalid copy direction for memcpy"),
    (Error::INVALID_FUNCTION, c"invalid device function"),
    (Error::MISSING_CONFIGURATION, c"a launch without a configuration"),
    (Error::NO_DRIVER, c"there is no CUDA driver, or one too old for this runtime"),
];

/// `cudaGetErrorName`
pub fn name(code: u32) -> *const c_char {
    let known = NAMES.iter().find(|(known, _)| *known == code);
    known.map_or(c"unrecognized error code", |(_, name)| name).as_ptr()
}

/// `cudaGetErrorString`
pub fn text(code: u32) -> *const c_char {
    let own = TEXTS.iter().find(|(known, _)| known.0 == code).map(|(_, text)| text.as_ptr());
    own.or_else(|| text_of_driver(code)).unwrap_or(c"unrecognized error code".as_ptr())
}

fn text_of_driver(code: u32) -> Option<*const c_char> {
    let mut text = std::ptr::null();
    Driver::of(Streams::Legacy).ok()?.cuGetErrorString(Enum::new(code), Out::to(&mut text)).ok()?;
    (!text.is_null()).then_some(text)
}
