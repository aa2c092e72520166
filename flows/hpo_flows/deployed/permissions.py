"""Permissions of deployed flows: settings of the deployment, never of the run.

Whoever fills in a form names an objective, a study file, a study or a cluster, and each of these names could stand
for code: a module that is imported, a file outside the folder, a scheduler whose pickles are loaded. So each is
compared with what the worker's own environment allows:

========================  =============================================================================
HPO_ALLOWED_OBJECTIVES    packages, modules or single functions, comma-separated: ``models, lab.train:fit``; of a
                          module the functions and classes that it defines itself (``def``, ``class``)
HPO_STUDY_FOLDER          the folder of the study files; unset: no study file can be chosen
HPO_IMPORT_FOLDERS        folders that objectives are imported from, besides what is installed, ``:`` between
HPO_ALLOWED_CLUSTERS      Dask scheduler addresses, comma-separated; unset: local workers only
HPO_ALLOWED_CHECKPOINTS   URLs for ``checkpoints.folder``, comma-separated; unset: the home folder only
HPO_DATA_FOLDER           a study names no file outside of it and of HPO_STUDY_FOLDER: partitions lie in one of them,
                          and no parameter or constant is another absolute path
========================  =============================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpo_core.home import Home
from hpo_core.model.errors import HpoError, SpecError
from hpo_core.model.short_text import shown
from hpo_core.security.masking import without_credentials
from hpo_core.spec import StudySpec, load_spec
from hpo_core.spec.module_source import read_module
from hpo_core.spec.sent_functions import names_value, short_name

_SUFFIXES = (".yaml", ".yml")


class NotAllowedError(HpoError):
    """A deployment's settings do not allow what a run asks for."""

    exit_code = 2


OBJECTIVES, CLUSTERS = "HPO_ALLOWED_OBJECTIVES", "HPO_ALLOWED_CLUSTERS"
CHECKPOINTS = "HPO_ALLOWED_CHECKPOINTS"


def _not_listed(
    what: str, allowed: Sequence[str], *, entry: str = "it", variable: str, why: str = ""
) -> NotAllowedError:
    listed = ", ".join(map(without_credentials, allowed)) or "none"
    return NotAllowedError(
        f"{what} is not allowed here{why}. Allowed: {listed}. Whoever runs the worker can add {entry} to {variable}."
    )


@dataclass(frozen=True, slots=True)
class Permissions:
    """Objectives, study files and clusters that deployed flows may use."""

    objectives: tuple[str, ...] = ()
    folder: Path | None = None
    import_folders: tuple[Path, ...] = ()
    clusters: tuple[str, ...] = ()
    checkpoint_folders: tuple[str, ...] = ()
    data_folder: Path | None = None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] | None = None) -> Permissions:
        """As the environment of this process says; whoever starts the worker decides it."""
        found = os.environ if environment is None else environment
        return cls(
            objectives=_listed(found.get(OBJECTIVES, "")),
            folder=_folder(found.get("HPO_STUDY_FOLDER", "")),
            import_folders=tuple(filter(None, map(_folder, found.get("HPO_IMPORT_FOLDERS", "").split(os.pathsep)))),
            clusters=_listed(found.get(CLUSTERS, "")),
            checkpoint_folders=_listed(found.get(CHECKPOINTS, "")),
            data_folder=_folder(found.get("HPO_DATA_FOLDER", "")),
        )

    def study_files(self) -> list[str]:
        """Names of the study files that a run may choose."""
        files = [] if self.folder is None else [path for path in self.folder.rglob("*") if path.suffix in _SUFFIXES]
        names = [path.relative_to(self.folder or "") for path in files if self._is_inside(path) and _is_study(path)]
        # a home, whose name begins with a dot, holds copies of study files
        return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))

    def check_function(self, setting: str, function: str, folders: Sequence[str] = ()) -> None:
        """Refuse a function that no entry of ``HPO_ALLOWED_OBJECTIVES`` stands for.

        An entry names the function in full, or the module that defines it (``def``, ``class``), or a package above.

        Args:
            setting: whose value it is.
            folders: where modules are looked for before ``sys.path``.

        Raises:
            NotAllowedError: names the value and the setting that would allow it.
        """
        if names_value(function):  # whatever HPO_ALLOWED_OBJECTIVES says
            raise NotAllowedError(
                f"{setting} = {short_name(function)!r} is not allowed here: deployments take no function by value, "
                "such as one of a notebook or script. Put it into a module, and name that: module:function."
            )
        module, _, name = function.partition(":")
        listed = any(":" not in entry and f"{module}.".startswith(f"{entry}.") for entry in self.objectives)
        if function not in self.objectives and not (listed and _defines(module, name, folders)):
            why = f": module {module} does not define it by def or class here" if listed else ""
            what, entry = f"{setting} = {function!r}", "this name in full"
            raise _not_listed(what, self.objectives, entry=entry, variable=OBJECTIVES, why=why)

    def load(self, name: str) -> StudySpec:
        """Read a study file of the folder and check what it wants.

        Raises:
            NotAllowedError: it lies outside the folder, or wants what is not allowed.
            SpecError: it is absent or describes no valid study.
        """
        spec = load_spec(self.path_of(name))
        here = str(Path.cwd())
        if here in spec.pythonpath:  # the file names no folder; a run starts in an empty one of its own
            roots = self.import_folders
            beside = [one for one in spec.pythonpath if one != here and any(Path(one).is_relative_to(r) for r in roots)]
            searched = [*dict.fromkeys([*beside, *map(str, roots)])]
            spec = spec.model_copy(update={"pythonpath": searched})
        self.check(spec)
        return spec

    def path_of(self, name: str) -> Path:
        """The study file of that name.

        Raises:
            NotAllowedError: no folder is set, or the name (or a link behind it) leads out of it.
        """
        if self.folder is None:
            raise NotAllowedError(
                "No study file can be chosen: HPO_STUDY_FOLDER is not set where this runs. Set it for the worker, "
                "or fill in the study."
            )
        path = self.folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not self._is_inside(path):
            raise NotAllowedError(
                f"study file {name!r} does not lie in the deployment's folder of studies. Choose one of: "
                f"{', '.join(self.study_files()) or 'none is there'}."
            )
        if path.suffix not in _SUFFIXES:
            raise NotAllowedError(f"study file {name!r} must end in {' or '.join(_SUFFIXES)}.")
        return path

    def _is_inside(self, path: Path) -> bool:
        assert self.folder is not None
        return path.resolve().is_relative_to(self.folder)

    def data_of(self, data: str) -> str:
        """The data a run may read: a file of the folder of data, or a name that the training function understands.

        Raises:
            NotAllowedError: it is a path outside that folder.
        """
        if self.data_folder is not None and (inside := self.data_folder / data).exists():
            data = str(inside)
        self._check_paths(data)
        return data

    def _check_paths(self, value: Any) -> None:
        """Refuse paths out of the folders of data and study files, which a worker or training function would open."""
        if isinstance(value, dict | list | tuple):
            for one in value.values() if isinstance(value, dict) else value:
                self._check_paths(one)
        elif isinstance(value, str) and (value.startswith(("/", "~")) or ".." in value.split("/")):
            place = Path(os.path.realpath(os.path.expanduser(value)))  # noqa: PTH111 - takes any text
            if not any(place.is_relative_to(root) for root in (self.data_folder, self.folder) if root is not None):
                raise NotAllowedError(
                    f"{shown(value)} is not allowed here: a study names files of the deployment's folder of data "
                    f"({self.data_folder or 'none is set'}), or beside its study files. Whoever runs the worker sets "
                    "HPO_DATA_FOLDER."
                )

    def check(self, spec: StudySpec) -> None:
        """Refuse a study that would import, or connect to, what is not allowed.

        Raises:
            NotAllowedError: names the value and the setting that would allow it.
        """
        if spec.objective is None:
            raise NotAllowedError(f"Study {spec.study!r} has no objective: it can only be driven by hand.")
        for entry in spec.pythonpath:
            self._check_import_folder(entry)
        for setting, function in spec.functions.items():
            self.check_function(setting, function, spec.pythonpath)
        with_rules_of_their_own = ("pythonpath", "checkpoints", "cluster")
        self._check_paths({name: one for name, one in spec.plain().items() if name not in with_rules_of_their_own})
        cluster, place = spec.cluster, spec.checkpoints.folder
        if cluster.permission is not None and cluster.permission not in self.clusters:
            raise _not_listed(cluster.named, self.clusters, entry=repr(cluster.permission), variable=CLUSTERS)
        if place is not None and place not in self.checkpoint_folders:  # files are removed there, too
            raise _not_listed(f"checkpoints.folder = {place!r}", self.checkpoint_folders, variable=CHECKPOINTS)

    def _check_import_folder(self, entry: str) -> None:
        """An allowed name means nothing if the run may say where it is imported from."""
        folder = Path(entry).resolve()
        if folder.is_relative_to(Home().folder):  # also where a folder that is allowed holds the home
            raise NotAllowedError(
                f"pythonpath = {entry!r} lies in the home folder, where training writes; nothing is imported from "
                "there. Put the code elsewhere."
            )
        if not any(folder.is_relative_to(root) for root in self.import_folders):
            folders = [*map(str, self.import_folders)]
            raise _not_listed(f"pythonpath = {entry!r}", folders, variable="HPO_IMPORT_FOLDERS")


def _is_study(path: Path) -> bool:
    with suppress(SpecError):
        load_spec(path)
        return True
    return False


def _defines(module: str, name: str, folders: Sequence[str]) -> bool:
    """Look for the name in the module's source, by ``def`` or ``class`` alone; nothing is imported."""
    try:
        source = read_module(module, folders)
    except (ModuleNotFoundError, SyntaxError):
        return False
    return source is not None and source.definition(name) is not None


def home_here() -> Home:
    """Where this process has its studies: settings of its environment, never parameters of a run.

    Raises:
        NotAllowedError: in a run of a deployment, if the worker names no place that lasts.
    """
    from prefect.runtime import deployment

    # whose process may start in a folder of its own that is removed at its end
    if deployment.id is not None and not Path(os.environ.get("HPO_HOME", "")).is_absolute():
        raise NotAllowedError(
            "HPO_HOME is not set to an absolute path where this runs, so results would be lost. Set it for the worker; "
            "`hpo worker` does."
        )
    return Home()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(entry for entry in (part.strip() for part in text.split(",")) if entry)


def _folder(text: str) -> Path | None:
    return Path(text.strip()).expanduser().resolve() if text.strip() else None
