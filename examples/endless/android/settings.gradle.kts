pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
    }
}

rootProject.name = "endless"
include(":kvik")
project(":kvik").projectDir = file("../../../bindings/kotlin/android")
