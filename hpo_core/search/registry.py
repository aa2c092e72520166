"""All search methods: a new one is a class in this folder and a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from hpo_core.search.asha import AshaSearch
from hpo_core.search.grid import GridSearch
from hpo_core.search.pasha import PashaSearch
from hpo_core.search.pbt import PbtSearch
from hpo_core.search.random import RandomSearch
from hpo_core.search.recorded import RecordedSearch
from hpo_core.search.search_settings import SearchSettings
from hpo_core.search.sha import HyperbandSearch, ShaSearch

SEARCH_METHODS: tuple[type[SearchSettings], ...] = (
    AshaSearch,
    ShaSearch,
    HyperbandSearch,
    PashaSearch,
    PbtSearch,
    RandomSearch,
    GridSearch,
    RecordedSearch,
)

BY_NAME: dict[str, type[SearchSettings]] = {cls.model_fields["method"].default: cls for cls in SEARCH_METHODS}
"""Their settings, by the name that a study file gives."""

if TYPE_CHECKING:
    Search = SearchSettings
else:
    Search = Annotated[Union[SEARCH_METHODS], Field(discriminator="method")]  # noqa: UP007 - a tuple of types


def settings_class(name: Any) -> type[SearchSettings] | None:
    return BY_NAME.get(name) if isinstance(name, str) else None
