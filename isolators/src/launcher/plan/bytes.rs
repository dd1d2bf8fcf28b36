//! A plan as bytes and back: what crosses from the agent to the launcher.

use std::ffi::CString;

use super::super::{CapabilitySets, LogFile, SeccompProgram};
use super::{PlannedAction, PlannedMount, PlannedOutput, TaskPlan};

impl TaskPlan {
    /// As bytes; the namespaces come first, where [`TaskPlan::namespaces_of`] finds them.
    pub(in crate::launcher) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(4096));
        out.number(self.namespaces);
        out.bytes(&self.boot_id);
        out.text(&self.status_dir);
        out.optional(self.hostname.as_deref());
        self.stdout.encode(&mut out);
        self.stderr.encode(&mut out);
        out.texts(&self.v1_tasks);
        out.optional(self.v2_group.as_ref().map(|group| group.as_bytes()));
        out.optional(self.oom_score_adj.as_deref());
        out.number(length(self.rlimits.len()));
        for number in self.rlimits.iter().flatten() {
            out.number(*number);
        }
        out.number(u64::from(self.no_new_privs));
        out.number(length(self.mounts.len()));
        for mount in &self.mounts {
            mount.encode(&mut out);
        }
        out.number(u64::from(self.capabilities.is_some()));
        if let Some(sets) = self.capabilities {
            out.number(sets.bounding);
            out.number(sets.effective);
        }
        out.number(length(self.seccomp.len()));
        for program in &self.seccomp {
            out.number(length(program.0.len()));
            for instruction in &program.0 {
                out.number(*instruction);
            }
        }
        for log in [self.stdout_log, self.stderr_log] {
            out.number(log.map_or(0, |log| log.bytes.max(1)));
            out.number(log.map_or(0, |log| u64::from(log.files)));
        }
        out.number(u64::from(self.credentials.is_some()));
        if let Some((uid, gid, groups)) = &self.credentials {
            out.number(u64::from(*uid));
            out.number(u64::from(*gid));
            out.number(length(groups.len()));
            for group in groups {
                out.number(u64::from(*group));
            }
        }
        out.text(&self.working_dir);
        out.texts(&self.programs);
        out.texts(&self.args);
        out.texts(&self.env);
        for number in self.join {
            out.number(number);
        }
        out.optional(self.stdin.as_ref().map(|path| path.as_bytes()));
        out.number(u64::from(self.terminal));
        out.number(u64::from(self.cgroup_namespace));
        out.0
    }

    /// The namespace flags of an encoded plan, which the launcher needs before the rest.
    pub(in crate::launcher) fn namespaces_of(bytes: &[u8]) -> Option<u64> {
        Reader(bytes).number()
    }

    /// The inverse of [`TaskPlan::encode`].
    pub(in crate::launcher) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let mut plan = Self {
            namespaces: from.number()?,
            boot_id: from.bytes()?.to_vec(),
            status_dir: from.text()?,
            hostname: from.optional()?.map(<[u8]>::to_vec),
            stdout: PlannedOutput::decode(&mut from)?,
            stderr: PlannedOutput::decode(&mut from)?,
            v1_tasks: from.texts()?,
            v2_group: from.optional()?.map(CString::new).transpose().ok()?,
            oom_score_adj: from.optional()?.map(<[u8]>::to_vec),
            ..Self::default()
        };
        for _ in 0..from.count()? {
            plan.rlimits
                .push([from.number()?, from.number()?, from.number()?]);
        }
        plan.no_new_privs = from.number()? != 0;
        for _ in 0..from.count()? {
            plan.mounts.push(PlannedMount::decode(&mut from)?);
        }
        if from.number()? != 0 {
            plan.capabilities = Some(CapabilitySets {
                bounding: from.number()?,
                effective: from.number()?,
            });
        }
        for _ in 0..from.count()? {
            let instructions = (0..from.count()?).map(|_| from.number());
            plan.seccomp
                .push(SeccompProgram(instructions.collect::<Option<_>>()?));
        }
        plan.stdout_log = from.log()?;
        plan.stderr_log = from.log()?;
        if from.number()? != 0 {
            let uid = u32::try_from(from.number()?).ok()?;
            let gid = u32::try_from(from.number()?).ok()?;
            let mut groups = Vec::new();
            for _ in 0..from.count()? {
                groups.push(u32::try_from(from.number()?).ok()?);
            }
            plan.credentials = Some((uid, gid, groups));
        }
        plan.working_dir = from.text()?;
        plan.programs = from.texts()?;
        plan.args = from.texts()?;
        plan.env = from.texts()?;
        plan.join = [from.number()?, from.number()?];
        plan.stdin = from.optional()?.map(CString::new).transpose().ok()?;
        plan.terminal = from.number()? != 0;
        plan.cgroup_namespace = from.number()? != 0;
        from.0.is_empty().then_some(plan)
    }
}

impl PlannedOutput {
    fn encode(&self, out: &mut Writer) {
        out.optional(self.beneath.as_ref().map(|root| root.as_bytes()));
        out.text(&self.path);
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            beneath: from.optional()?.map(CString::new).transpose().ok()?,
            path: from.text()?,
        })
    }
}

impl PlannedMount {
    fn encode(&self, out: &mut Writer) {
        out.text(&self.path);
        out.optional(self.beneath.as_ref().map(|root| root.as_bytes()));
        match &self.action {
            PlannedAction::ReadOnlyTree => out.number(0),
            PlannedAction::ReadOnlyPath => out.number(1),
            PlannedAction::MaskFile => out.number(2),
            PlannedAction::Tmpfs { options, writable } => {
                out.number(3);
                out.text(options);
                out.number(u64::from(*writable));
            }
            PlannedAction::Bind {
                beneath,
                path,
                by_user,
                writable,
            } => {
                out.number(4);
                out.optional(beneath.as_ref().map(|root| root.as_bytes()));
                out.text(path);
                out.number(u64::from(*by_user));
                out.number(u64::from(*writable));
            }
            PlannedAction::Unmount => out.number(5),
            PlannedAction::CgroupTree { controllers } => {
                out.number(6);
                out.text(controllers);
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            path: from.text()?,
            beneath: from.optional()?.map(CString::new).transpose().ok()?,
            action: match from.number()? {
                0 => PlannedAction::ReadOnlyTree,
                1 => PlannedAction::ReadOnlyPath,
                2 => PlannedAction::MaskFile,
                3 => PlannedAction::Tmpfs {
                    options: from.text()?,
                    writable: from.number()? != 0,
                },
                4 => PlannedAction::Bind {
                    beneath: from.optional()?.map(CString::new).transpose().ok()?,
                    path: from.text()?,
                    by_user: from.number()? != 0,
                    writable: from.number()? != 0,
                },
                5 => PlannedAction::Unmount,
                6 => PlannedAction::CgroupTree {
                    controllers: from.text()?,
                },
                _ => return None,
            },
        })
    }
}

fn length(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(length(bytes.len()));
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &CString) {
        self.bytes(text.as_bytes());
    }

    fn texts(&mut self, texts: &[CString]) {
        self.number(length(texts.len()));
        for text in texts {
            self.text(text);
        }
    }

    fn optional(&mut self, bytes: Option<&[u8]>) {
        self.number(u64::from(bytes.is_some()));
        if let Some(bytes) = bytes {
            self.bytes(bytes);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn log(&mut self) -> Option<Option<LogFile>> {
        let (bytes, files) = (self.number()?, self.number()?);
        let files = u32::try_from(files).ok()?;
        Some((bytes > 0).then_some(LogFile { bytes, files }))
    }

    fn number(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*head))
    }

    /// A count of things of at least eight bytes each, so that a bad one cannot make us reserve.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len() / 8).then_some(count)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    fn text(&mut self) -> Option<CString> {
        CString::new(self.bytes()?).ok()
    }

    fn texts(&mut self) -> Option<Vec<CString>> {
        (0..self.count()?).map(|_| self.text()).collect()
    }

    fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        if self.number()? == 0 {
            Some(None)
        } else {
            self.bytes().map(Some)
        }
    }
}
