"""If a model stays unavailable, the next one answers the same turn."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from aish.core.errors import UnavailableError
from aish.core.messages import Delta, FellBack
from aish.core.protocols import Model, ModelRequest
from aish.core.tools import MediaKinds


def with_fallbacks(model: Model, others: Sequence[Model]) -> Model:
    return Fallbacks((model, *others)) if others else model


class Fallbacks:
    """Several models as one, with the alias of the first."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = tuple(models)

    @property
    def alias(self) -> str:
        return self._models[0].alias

    @property
    def enforces_schema(self) -> bool:
        """Only if each of them does, since any of them may have to answer."""
        return all(model.enforces_schema for model in self._models)

    @property
    def schema_with_tools(self) -> bool:
        """Only if each of them supports both."""
        return all(model.schema_with_tools for model in self._models)

    @property
    def nulls_for_absent(self) -> bool:
        """If any of them is so, since any of them may have answered."""
        return any(model.nulls_for_absent for model in self._models)

    @property
    def media_kinds(self) -> MediaKinds:
        """Only those that each of them takes."""
        return frozenset.intersection(*(model.media_kinds for model in self._models))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Sequence[Delta]]:
        """Answer one turn with the first model that can; `Finish.model` says which.

        Raises:
            UnavailableError: none of them could.
            StepFailedError: a model refused the request; the next one is not asked.
        """
        failures: list[UnavailableError] = []
        for index, model in enumerate(self._models):
            batches = model.stream(request)
            try:
                async for batch in batches:
                    yield batch
            except UnavailableError as error:
                failures.append(error)
            else:
                return
            finally:
                # Close the return value of `stream`, if it is a generator
                if isinstance(batches, AsyncGenerator):
                    await batches.aclose()
            if index + 1 < len(self._models):
                target = self._models[index + 1].alias
                yield [FellBack(source=model.alias, target=target, reason=failures[-1].message)]
                # Asked again, the first one would be asked first.
                request = replace(request, suspends=False, pending=None)
        raise _all_failed(failures)


def _all_failed(failures: Sequence[UnavailableError]) -> UnavailableError:
    reasons = "; ".join(str(failure) for failure in failures)
    error = UnavailableError(f"no model answered: {reasons}", hint=failures[0].hint)
    error.retryable = any(failure.retryable for failure in failures)
    return error
