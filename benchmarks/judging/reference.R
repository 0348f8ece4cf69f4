# What R says of the tables in this folder: metafor of the spread between groups, rms and glm of calibration.
# From the root of the repository, with the packages metafor, rms, sandwich and jsonlite:
#     Rscript benchmarks/judging/reference.R
suppressMessages({library(metafor); library(rms); library(sandwich); library(jsonlite)})

folder <- "benchmarks/judging"
write_reference <- function(found, name, packages) {
  versions <- sapply(packages, function(package) as.character(packageVersion(package)))
  text <- toJSON(list(versions = as.list(versions), tables = found), auto_unbox = TRUE, digits = I(15), pretty = TRUE)
  writeLines(text, file.path(folder, name))
}

# The spread between groups -------------------------------------------------------------------------------------------
accurate <- list(threshold = 1e-13, maxiter = 10000, tol = 1e-14)
spread <- lapply(split(groups <- read.csv(file.path(folder, "spread_tables.csv")), groups$table), function(part) {
  reml <- rma(part$estimate, sei = part$error, method = "REML", test = "knha", control = accurate)
  normal <- rma(part$estimate, sei = part$error, method = "REML", control = accurate)
  pm <- rma(part$estimate, sei = part$error, method = "PM", control = accurate)
  ends <- confint(reml, control = list(tol = 1e-14, maxiter = 10000))$random["tau", c("ci.lb", "ci.ub")]
  new <- predict(reml)
  list(
    tau = sqrt(reml$tau2), tau_low = ends[[1]], tau_high = ends[[2]], tau_paule_mandel = sqrt(pm$tau2),
    Q = reml$QE, I2 = reml$I2 / 100, mean = reml$beta[[1]], mean_low = reml$ci.lb, mean_high = reml$ci.ub,
    new_low = new$pi.lb, new_high = new$pi.ub,
    new_low_normal = predict(normal)$pi.lb, new_high_normal = predict(normal)$pi.ub
  )
})
write_reference(spread, "metafor.json", "metafor")

# Calibration ---------------------------------------------------------------------------------------------------------
exact <- glm.control(epsilon = 1e-14, maxit = 100)
calibration <- lapply(split(rows <- read.csv(file.path(folder, "calibration_tables.csv")), rows$table), function(part) {
  clipped <- pmin(pmax(part$probability, 1e-6), 1 - 1e-6)
  part$odds <- qlogis(clipped)
  of <- function(weights) {
    part$w <- weights
    both <- suppressWarnings(glm(positive ~ odds, quasibinomial, part, weights = w, control = exact))
    large <- suppressWarnings(glm(positive ~ 1, quasibinomial, part, weights = w, offset = odds, control = exact))
    list(
      intercept = coef(both)[[1]], slope = coef(both)[[2]], in_the_large = coef(large)[[1]],
      # Of weights per row, not of counts: the sandwich.
      slope_error = sqrt(sandwich(both)[2, 2]), in_the_large_error = sqrt(sandwich(large)[1, 1]),
      observed_over_expected = sum(weights * part$positive) / sum(weights * part$probability)
    )
  }
  val <- val.prob(clipped, part$positive, pl = FALSE)
  list(
    plain = of(rep(1, nrow(part))), weighted = of(part$weight),
    val_prob = list(intercept = val[["Intercept"]], slope = val[["Slope"]])
  )
})
write_reference(calibration, "glm.json", c("rms", "sandwich"))
